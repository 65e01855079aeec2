//! Tuning from prompts to a recommendation, on the toy engine.

use std::fs;
use std::time::Duration;

use forerun_decode::Sampling;

use super::*;
use crate::toy::{Folder, Heard, Toy};

#[test]
fn tuning_runs_from_prompts_to_a_recommendation() {
    let folder = Folder::new("tune");
    let config = TuneConfig {
        target: PathBuf::from("target.gguf"),
        drafts: vec![PathBuf::from("draft.gguf")],
        prompts: None,
        text_len: 24,
        len_max: 4,
        paths: NonZeroU32::new(2).expect("2 > 0"),
        limit: Limit::from_now(Duration::from_secs(60)),
        quick: true,
        plot: Some(folder.path("plot.svg")),
        sampling: SamplingConfig { sampling: Sampling::unshaped(), ignore_end: true, seed: 1 },
        said: Said::default(),
    };
    let kinds = [&[DrafterKind::DraftModel], &TuneConfig::LOOKING_UP[..]].concat();
    let (mut toy, heard) = (Toy { drafters: kinds }, Heard::default());
    run(&config, &mut toy, &heard, &Cancellation::default()).unwrap();
    let results = heard.results.borrow();
    let [survey, recommended] = results.as_slice() else { panic!("{results:?}") };
    assert!(survey.contains("draft, 2 paths") && survey.contains("suffix"), "{survey}");
    assert!(recommended.contains("Recommendation: "), "{recommended}");
    assert!(recommended.contains("forerun chat -m target.gguf"), "{recommended}");
    assert!(fs::read_to_string(folder.path("plot.svg")).unwrap().starts_with("<svg"));
}
