//! What is wrong, and what to do about it: from what was found alone, so that each can be tested.

use forerun_lab::bytes;
use serde::Serialize;

use super::Examination;

/// Less room than this on the cache's disk holds no model worth the name.
const FREE_MIN: u64 = 1 << 30;

/// What processors can do for a model, in Linux's words and in llama.cpp's.
const ABILITIES: &[(&str, &str)] = &[
    ("avx2", "AVX2"),
    ("fma", "FMA"),
    ("f16c", "F16C"),
    ("avx512f", "AVX512"),
    ("avx512_vnni", "AVX512_VNNI"),
    ("amx_int8", "AMX_INT8"),
    ("asimddp", "DOTPROD"),
    ("i8mm", "MATMUL_INT8"),
];

/// Something found, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) what: String,
    pub(super) advice: String,
}

impl Finding {
    pub(super) fn new(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { what: what.into(), advice: advice.into() }
    }
}

impl Examination {
    /// What is wrong.
    pub(super) fn find_problems(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        if self.build.profile != "release" {
            let what = "this is a debug build, which is slow";
            found.push(Finding::new(what, "build with `cargo build --release` or `cargo install`"));
        }
        let unused = self.unused_abilities();
        if !unused.is_empty() {
            found.push(Finding::new(
                format!("the processor has {}, which this build does not use", unused.join(", ")),
                "build on this machine, with clang 16 or later: passes take less time, and drafts pay more",
            ));
        }
        if let Some(error) = &self.configuration.error {
            let advice =
                "correct the file; `forerun config` checks it, and FORERUN_CONFIG= leaves it out";
            found.push(Finding::new(error.clone(), advice));
        }
        if let Some(hub) = &self.hub {
            if let Some(error) = &hub.cache_error {
                let advice = "make the folder writable, or set HF_HUB_CACHE to another one";
                found.push(Finding::new(error.clone(), advice));
            }
            if let Some(free) = hub.free_bytes.filter(|free| *free < FREE_MIN) {
                found.push(Finding::new(
                    format!("{} has {} free", hub.cache, bytes(free)),
                    "make room (`forerun rm` removes models), or set HF_HUB_CACHE to a folder on another disk",
                ));
            }
        }
        for state in &self.models {
            if let Some(error) = &state.error {
                let advice = match state.model.store {
                    forerun_hub::Store::Hub => {
                        let name = &state.model.name;
                        format!("`forerun rm {name}`, then `forerun pull {name}`")
                    }
                    _ => "download it again with the program that keeps it".to_owned(),
                };
                found.push(Finding::new(error.clone(), advice));
            }
        }
        found
    }

    /// What is good to know.
    pub(super) fn find_notes(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        for name in &self.environment_ignored {
            let advice = "`forerun serve --help` lists the variables that are heard";
            found.push(Finding::new(format!("{name} is set and means nothing here"), advice));
        }
        if let Some(hub) = self.hub.as_ref().filter(|hub| hub.partial.0 > 0) {
            let (count, size) = hub.partial;
            found.push(Finding::new(
                format!("{count} broken-off downloads take {}", bytes(size)),
                "`forerun pull` continues one, `forerun rm` of its repository removes it",
            ));
        }
        let memory = self.memory_available_bytes.unwrap_or(u64::MAX);
        for state in self.models.iter().filter(|state| state.model.size > memory) {
            found.push(Finding::new(
                format!("{} is larger than the memory that is available", state.model.name),
                "choose a smaller quantisation: its weights would be read from disk at every token",
            ));
        }
        if self.models.is_empty() {
            let what = "there are no models on this machine";
            found.push(Finding::new(what, "`forerun chat -hf USER/REPO` downloads one"));
        }
        found
    }

    /// What the processor has and llama.cpp was built without.
    fn unused_abilities(&self) -> Vec<&'static str> {
        let used = |name: &str| self.build.processor_features.contains(&format!("{name} = 1"));
        let has = |flag: &str| self.processor_flags.iter().any(|known| known == flag);
        let unused = ABILITIES.iter().filter(|(flag, name)| has(flag) && !used(name));
        unused.map(|(_, name)| *name).collect()
    }
}

#[cfg(test)]
mod tests {
    use forerun_hub::{LocalModel, Store};
    use forerun_lab::{Build, Machine};

    use super::super::{ConfigurationState, HubState, ModelState};
    use super::*;

    /// Something that befalls a machine.
    type Change = Box<dyn FnOnce(&mut Examination)>;

    fn healthy() -> Examination {
        Examination {
            build: Build {
                version: "1".into(),
                commit: None,
                profile: "release".into(),
                llama: "llama".into(),
                processor_features: "CPU : AVX2 = 1 | FMA = 1 | AVX512 = 1 | AVX512_VNNI = 1 | "
                    .into(),
            },
            gpu: Vec::new(),
            machine: Machine::here(),
            memory_available_bytes: Some(8 << 30),
            processor_flags: ["sse", "avx2", "fma"].map(str::to_owned).to_vec(),
            configuration: ConfigurationState::default(),
            hub: Some(HubState {
                endpoint: "https://hub.example/".into(),
                has_token: false,
                offline: false,
                cache: "/cache".into(),
                cache_error: None,
                free_bytes: Some(100 << 30),
                partial: (0, 0),
            }),
            models: vec![ModelState {
                model: LocalModel {
                    store: Store::Hub,
                    name: "acme/tiny:Q8_0".into(),
                    location: "/cache/x.gguf".into(),
                    size: 1 << 30,
                    is_head: false,
                },
                architecture: Some("llama".into()),
                error: None,
            }],
            environment: Vec::new(),
            environment_ignored: Vec::new(),
            problems: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// What is found after a change to a healthy machine.
    fn changed(change: impl FnOnce(&mut Examination)) -> (Vec<String>, Vec<String>) {
        let mut examination = healthy();
        change(&mut examination);
        let words = |found: Vec<Finding>| {
            found.into_iter().map(|it| format!("{}; {}", it.what, it.advice)).collect()
        };
        (words(examination.find_problems()), words(examination.find_notes()))
    }

    #[test]
    fn a_healthy_machine_has_no_problem() {
        assert_eq!(changed(|_| {}), (Vec::new(), Vec::new()));
    }

    #[test]
    fn each_problem_is_found_alone_and_with_advice() {
        let hub =
            |it: &mut Examination, change: fn(&mut HubState)| change(it.hub.as_mut().unwrap());
        let cases: [(&str, Change); 7] = [
            ("cargo install", Box::new(|it| it.build.profile = "debug".into())),
            ("AMX_INT8", Box::new(|it| it.processor_flags.push("amx_int8".into()))),
            ("forerun config", Box::new(|it| it.configuration.error = Some("wrong".into()))),
            ("F16C", Box::new(|it| it.processor_flags.push("f16c".into()))),
            (
                "HF_HUB_CACHE",
                Box::new(move |it| hub(it, |hub| hub.cache_error = Some("no".into()))),
            ),
            ("forerun rm", Box::new(move |it| hub(it, |hub| hub.free_bytes = Some(FREE_MIN - 1)))),
            ("forerun pull acme/tiny:Q8_0", Box::new(|it| it.models[0].error = Some("cut".into()))),
        ];
        for (words, change) in cases {
            let (problems, notes) = changed(change);
            assert_eq!((problems.len(), notes.len()), (1, 0), "{words}: {problems:?} {notes:?}");
            assert!(problems[0].contains(words), "{problems:?}");
        }
    }

    #[test]
    fn what_is_good_to_know_is_no_problem() {
        let cases: [(&str, Change); 4] = [
            ("LLAMA_ARG_X", Box::new(|it| it.environment_ignored.push("LLAMA_ARG_X".into()))),
            ("2 broken-off", Box::new(|it| it.hub.as_mut().unwrap().partial = (2, 5 << 30))),
            ("larger than the memory", Box::new(|it| it.memory_available_bytes = Some(1))),
            ("-hf USER/REPO", Box::new(|it| it.models.clear())),
        ];
        for (words, change) in cases {
            let (problems, notes) = changed(change);
            assert_eq!((problems.len(), notes.len()), (0, 1), "{words}: {problems:?} {notes:?}");
            assert!(notes[0].contains(words), "{notes:?}");
        }
    }
}
