//! What is drafted for a request, and which rule verifies it.

use forerun_decode::{
    DraftPolicy, DrafterInfo, DrafterKind, Drafts, LossyMode, RuleChoice, Sampling,
};

use super::SpeculativeParameters;
use crate::config::DraftDefaults;
use crate::error::RequestError;
use crate::request::Drafting;
use crate::service::Service;

/// Tokens of a path where the target may be left out, unless a request has another length.
const DEFERRED_LEN: usize = 4;

/// What the output may be an edited version of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edits {
    /// The request predicts an output.
    Prediction,
    /// The prompt holds code.
    Prompt,
    /// Neither is so.
    Nothing,
}

impl Service {
    /// Decides what is drafted and which rule verifies it.
    pub(super) fn drafting(
        &self,
        set: &SpeculativeParameters,
        seeded: bool,
        sampling: &Sampling,
        edits: impl FnOnce() -> Edits,
    ) -> Result<Drafting, RequestError> {
        let lossy = self.lossy_mode(set, seeded)?;
        let refuse = |field: &str, message: String| {
            Err(RequestError::parameter(format!("speculative.{field}"), message))
        };
        let named = set.rule.as_deref().map(str::parse::<RuleChoice>).transpose();
        let rule = named.map_err(|error| RequestError::parameter("speculative.rule", error))?;
        if set.enabled == Some(false) {
            let fields = [
                ("drafter", set.drafter.is_some()),
                ("length", set.length.is_some()),
                ("paths", set.paths.is_some()),
                ("lossy", set.lossy.is_some()),
            ];
            if let Some((field, _)) = fields.into_iter().find(|(_, is_set)| *is_set) {
                let message = format!("`enabled` is false, and `{field}` would do nothing");
                return refuse(field, message);
            }
            return Ok(plain(rule, seeded, true));
        }
        let drafters = self.drafters_for(set, edits)?;
        if drafters.is_empty() {
            let expects_drafts = set.enabled == Some(true) || set.length.is_some();
            if expects_drafts || set.paths.is_some() {
                let message = "this server has nothing that drafts: start it with \
                               --spec-draft-model FILE or --spec-type ngram";
                return refuse("enabled", message.to_owned());
            }
            return Ok(plain(rule, seeded, false));
        }
        let own = &self.drafts;
        let width = self.width_for(set, &drafters)?;
        let has_model = drafters.iter().any(|drafter| drafter.kind.is_model());
        // What a round takes says nothing where the target does not run in it: nothing adapts.
        let defers = matches!(lossy, Some(LossyMode::Defer(_)));
        let most = if defers && set.length.is_none() { DEFERRED_LEN } else { usize::MAX };
        let draft_len_max = self.draft_len_for(set, &drafters)?.min(most);
        let together = drafters.len() + width - 1 <= self.paths_max;
        let several = together && (drafters.len() > 1 || width > 1);
        let default = match own.rule {
            // A seed determines the output, whatever is drafted.
            _ if seeded => RuleChoice::Coupled,
            Some(rule) => rule,
            None if several => RuleChoice::Pooled,
            None => RuleChoice::Block,
        };
        let rule = rule.unwrap_or(default);
        let width =
            if seeded && set.paths.is_none() && rule == RuleChoice::Coupled { 1 } else { width };
        let drafts = Drafts {
            drafters: if together { drafters.len() } else { 1 },
            has_model,
            may_stop: own.may_stop,
            width,
            paths: None,
        };
        let scheme = rule
            .scheme(&drafts)
            .map_err(|error| RequestError::parameter("speculative.rule", error))?;
        let drafters = drafters.into_iter().map(|drafter| drafter.id).collect();
        if let Some(mode) = lossy {
            let named = set.rule.as_ref().map(|_| rule);
            mode.stands_in_for(named)
                .and_then(|()| mode.admits(&drafts, sampling))
                .map_err(|error| RequestError::parameter("speculative.lossy", error))?;
        }
        let verified = lossy.map_or_else(|| rule.with_seed(0), LossyMode::rule);
        let policy = DraftPolicy::drafted(drafters, draft_len_max, verified);
        let policy = policy.wide(width).drawn(scheme);
        let adaptive = own.adaptive && set.length.is_none() && !defers;
        Ok(Drafting { policy, rule, lossy, adaptive, refused: false })
    }

    /// The lossy mode of a request, if the server allows it.
    fn lossy_mode(
        &self,
        set: &SpeculativeParameters,
        seeded: bool,
    ) -> Result<Option<LossyMode>, RequestError> {
        let Some(lossy) = &set.lossy else { return Ok(None) };
        let refuse = |message: String| Err(RequestError::parameter("speculative.lossy", message));
        let Some(most) = self.drafts.lossy_max else {
            return refuse(
                "this server decodes without loss: leave `lossy` out, or start the server with \
                 --lossy-max"
                    .to_owned(),
            );
        };
        if lossy.per_token > most {
            let asked = lossy.per_token;
            return refuse(format!(
                "per_token is {asked}; this server allows at most {most} (--lossy-max)"
            ));
        }
        if seeded && set.rule.is_none() {
            return refuse(
                "a seed determines the output whatever is drafted, and a lossy mode lets it depend on \
                 drafts: leave one of them out, or name the rule `block`"
                    .to_owned(),
            );
        }
        let mode = match lossy.mode.as_str() {
            "near" => LossyMode::near(lossy.gap.unwrap_or(1.0), lossy.per_token),
            name => LossyMode::named(name, lossy.per_token, lossy.factor),
        };
        mode.map(Some).map_err(|error| RequestError::parameter("speculative.lossy", error))
    }

    /// How long a draft may be.
    fn draft_len_for(
        &self,
        set: &SpeculativeParameters,
        drafters: &[DrafterInfo],
    ) -> Result<usize, RequestError> {
        let priced = |it: &DrafterInfo| matches!(it.kind, DrafterKind::Edit | DrafterKind::Suffix);
        let DraftDefaults { length, priced_length, .. } = self.drafts;
        let most = if drafters.iter().any(priced) { priced_length } else { length };
        let length = set.length.unwrap_or(most);
        if !(1..=most).contains(&length) {
            let message = format!(
                "length is {length}; expected 1 to {most}, the most draft tokens this server \
                 takes (--spec-draft-n-max)"
            );
            return Err(RequestError::parameter("speculative.length", message));
        }
        Ok(length)
    }

    /// How many paths the draft model draws, or edits alone propose.
    fn width_for(
        &self,
        set: &SpeculativeParameters,
        drafters: &[DrafterInfo],
    ) -> Result<usize, RequestError> {
        let own = &self.drafts;
        let has_model = drafters.iter().any(|drafter| drafter.kind.is_model());
        let edits = drafters.iter().all(|drafter| drafter.kind == DrafterKind::Edit);
        let most = if has_model || edits { own.width } else { 1 };
        let width = set.paths.unwrap_or(most);
        if width == 0 || width > most {
            let message = format!(
                "{width} paths were asked for; this server draws 1 to {most} here \
                 (--spec-draft-paths)"
            );
            return Err(RequestError::parameter("speculative.paths", message));
        }
        Ok(width)
    }

    /// The drafters of a request.
    fn drafters_for(
        &self,
        set: &SpeculativeParameters,
        edits: impl FnOnce() -> Edits,
    ) -> Result<Vec<DrafterInfo>, RequestError> {
        let known = &self.drafts.drafters;
        let turns = self.drafts.adaptive && set.length.is_none();
        let Some(named) = set.drafter.clone() else {
            let chosen = |drafter: &DrafterInfo| !self.drafts.on_demand.contains(&drafter.id);
            let (mut drafters, on_demand): (Vec<DrafterInfo>, Vec<DrafterInfo>) =
                known.iter().partition(|drafter| chosen(drafter));
            // If the cache holds no path beside the others, the controller lets them take turns;
            // without a controller, a prediction is the better drafter, and code in a prompt is not.
            let beside = turns || drafters.len() < self.paths_max;
            match edits() {
                Edits::Nothing => {}
                Edits::Prompt if !beside => {}
                Edits::Prediction if !beside => drafters = on_demand,
                Edits::Prompt | Edits::Prediction => drafters.extend(on_demand),
            }
            return Ok(drafters);
        };
        let mut drafters: Vec<DrafterInfo> = Vec::new();
        for name in named {
            let drafter = known.iter().find(|drafter| drafter.kind.name() == name);
            let Some(drafter) = drafter.filter(|drafter| !drafters.contains(drafter)) else {
                let names: Vec<&str> = known.iter().map(|drafter| drafter.kind.name()).collect();
                let message = format!(
                    "{name:?} is no drafter of this server, or named twice: it has {}",
                    names.join(", ")
                );
                return Err(RequestError::parameter("speculative.drafter", message));
            };
            drafters.push(*drafter);
        }
        if drafters.len() > self.paths_max && !turns {
            let message = format!(
                "this server holds {} paths of a sequence at once, and {} drafters were named: name \
                 fewer, or start it with --kv-unified on",
                self.paths_max,
                drafters.len()
            );
            return Err(RequestError::parameter("speculative.drafter", message));
        }
        Ok(drafters)
    }
}

/// Plain decoding. A seed determines the same output as with drafts.
fn plain(rule: Option<RuleChoice>, seeded: bool, refused: bool) -> Drafting {
    let default = if seeded { RuleChoice::Coupled } else { RuleChoice::Block };
    let rule = rule.unwrap_or(default);
    let policy = DraftPolicy::drafted(Vec::new(), 0, rule.with_seed(0));
    Drafting { policy, rule, lossy: None, adaptive: false, refused }
}
