//! Who sends requests.

/// Who sent a request: clients take turns at the slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Client {
    /// The front end of a [`crate::Host`].
    #[default]
    Host,
    /// A tenant: whoever has one of its API keys.
    Tenant(u64),
    /// A connection, if the server has no keys.
    Connection(u64),
}
