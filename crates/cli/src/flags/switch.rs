//! Flags that are on or off.

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Switch {
    /// Yes
    On,
    /// No
    Off,
}
