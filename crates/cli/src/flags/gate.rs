//! Whether a gate ends drafts, and where what it learned is stored.

use std::path::PathBuf;

use super::error::ConfigError;
use super::switch::Switch;

/// Whether a gate ends drafts unless told otherwise.
const DEFAULT: bool = false;

/// The gate, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GateConfig {
    /// Whether there is one.
    pub(crate) on: bool,
    /// Where what it learned is stored.
    pub(crate) file: Option<PathBuf>,
}

impl GateConfig {
    /// Decides the default.
    pub(super) fn resolve(
        spec_gate: Option<Switch>,
        file: Option<PathBuf>,
        adaptive: bool,
        has_model: bool,
    ) -> Result<Self, ConfigError> {
        let flag = if file.is_some() { "--spec-gate-file" } else { "--spec-gate" };
        let unused = |reason, instead| Err(ConfigError::Unused { flag, reason, instead });
        let said = spec_gate == Some(Switch::On) || file.is_some();
        match (said, spec_gate) {
            (true, Some(Switch::Off)) => unused("--spec-gate is off", "leave one of them out"),
            (true, _) if !has_model => {
                unused("no draft model drafts", "add --spec-draft-model FILE")
            }
            (true, _) if !adaptive => {
                unused("drafts have a fixed length", "add --spec-adaptive on")
            }
            _ => {
                let on = said || (spec_gate.is_none() && DEFAULT && adaptive && has_model);
                Ok(Self { on, file })
            }
        }
    }
}
