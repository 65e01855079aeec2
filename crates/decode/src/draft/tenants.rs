//! Suffix drafts for several tenants, none of whom learns what another was told.
//!
//! A draft from another's output would be verified faster, and so tell that the other has it. Each
//! tenant therefore has a [`SuffixDrafter`] of its own.

use std::collections::HashMap;

use forerun_verify::Token;

use super::fixed::add_path;
use super::suffix::{SuffixConfig, SuffixDrafter};
use crate::draft::{DraftFailure, DraftRequest, Drafter, DrafterKind, FixedTokens, Tenant};
use crate::engine::Slot;

/// Most tenants that are remembered.
const TENANTS_MAX: usize = 256;

/// The share of all that is remembered that one tenant may take.
const TENANT_SHARE: usize = 8;

/// Drafts what most often followed the longest suffix in the sequence itself and in earlier outputs
/// of the same tenant.
///
/// A sequence without a tenant is drafted for from itself alone, and nothing is learned from it. All
/// tenants together remember [`SuffixConfig::tokens_max`] tokens, one of them an eighth of that at
/// most; of more, those are forgotten whose last output is the oldest.
///
/// ```
/// use forerun_decode::{Drafter, Slot, Tenant, TenantSuffixDrafter, Token};
/// let mut drafter = TenantSuffixDrafter::default();
/// drafter.share(Slot(0), Some(Tenant(1)));
/// drafter.share(Slot(1), Some(Tenant(2)));
/// drafter.ended(Slot(0), &[1, 2, 3, 4].map(Token));
/// assert_eq!(drafter.propose(Slot(0), &[1, 2].map(Token), 8), [3, 4].map(Token));
/// assert_eq!(drafter.propose(Slot(1), &[1, 2].map(Token), 8), []);
/// ```
#[derive(Debug, Clone)]
pub struct TenantSuffixDrafter {
    config: SuffixConfig,
    tenants: HashMap<Tenant, Memory>,
    /// For sequences without a tenant; learns nothing.
    nobody: SuffixDrafter,
    slots: HashMap<Slot, Tenant>,
    /// How many outputs were learned.
    learned: u64,
}

/// What one tenant's outputs taught.
#[derive(Debug, Clone)]
struct Memory {
    drafter: SuffixDrafter,
    /// When it last learned, in outputs of all.
    learned: u64,
}

impl Default for TenantSuffixDrafter {
    fn default() -> Self {
        Self::new(SuffixConfig::default())
    }
}

impl TenantSuffixDrafter {
    /// A drafter that has seen nothing.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let config = SuffixConfig { tokens_max: 0, ..SuffixConfig::default() };
    /// let mut drafter = TenantSuffixDrafter::new(config);
    /// drafter.share(Slot(0), Some(Tenant(1)));
    /// drafter.ended(Slot(0), &[1, 2, 3].map(Token));
    /// assert_eq!(drafter.propose(Slot(0), &[1, 2].map(Token), 8), []);
    /// ```
    pub fn new(config: SuffixConfig) -> Self {
        Self {
            config,
            tenants: HashMap::new(),
            nobody: SuffixDrafter::new(config),
            slots: HashMap::new(),
            learned: 0,
        }
    }

    /// What it drafts after `tokens`, the committed tokens of the sequence in `slot`, at the default
    /// price.
    ///
    /// ```
    /// # use forerun_decode::*;
    /// let mut drafter = TenantSuffixDrafter::default();
    /// assert_eq!(drafter.propose(Slot(0), &[3, 4, 9, 8, 3, 4].map(Token), 1), [Token(9)]);
    /// ```
    pub fn propose(&mut self, slot: Slot, tokens: &[Token], len_max: usize) -> Vec<Token> {
        self.of(slot).propose(slot, tokens, len_max)
    }

    /// The drafter for a slot's sequence.
    fn of(&mut self, slot: Slot) -> &mut SuffixDrafter {
        let tenant = self.slots.get(&slot);
        match tenant.and_then(|tenant| self.tenants.get_mut(tenant)) {
            Some(memory) => &mut memory.drafter,
            None => &mut self.nobody,
        }
    }

    /// Forgets tenants until all that is remembered is within its bounds.
    fn bound(&mut self) {
        let len = |memory: &Memory| memory.drafter.remembered_len();
        while self.tenants.len() > TENANTS_MAX
            || self.tenants.values().map(len).sum::<usize>() > self.config.tokens_max
        {
            let oldest = self.tenants.iter().min_by_key(|(_, memory)| memory.learned);
            let Some(tenant) = oldest.map(|(tenant, _)| *tenant) else { return };
            self.tenants.remove(&tenant);
        }
    }
}

impl Drafter for TenantSuffixDrafter {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Suffix
    }

    fn heeds_price(&self) -> bool {
        true
    }

    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) -> Result<(), DraftFailure> {
        for request in requests {
            let (slot, allowance) = (request.slot, request.allowance());
            let path = self.of(slot).propose_within(slot, request.tokens, &allowance);
            add_path(request, FixedTokens::of(path));
        }
        Ok(())
    }

    fn share(&mut self, slot: Slot, tenant: Option<Tenant>) {
        // What is known of the slot's last sequence is no use to the next one.
        self.forget(slot);
        match tenant {
            Some(tenant) => self.slots.insert(slot, tenant),
            None => self.slots.remove(&slot),
        };
    }

    fn ended(&mut self, slot: Slot, output: &[Token]) {
        let Some(tenant) = self.slots.get(&slot) else { return };
        self.learned += 1;
        let own = SuffixConfig { tokens_max: self.config.tokens_max / TENANT_SHARE, ..self.config };
        let new = || Memory { drafter: SuffixDrafter::new(own), learned: 0 };
        let memory = self.tenants.entry(*tenant).or_insert_with(new);
        memory.learned = self.learned;
        memory.drafter.ended(slot, output);
        self.bound();
    }

    fn forget(&mut self, slot: Slot) {
        self.of(slot).forget(slot);
        self.nobody.forget(slot);
    }
}
