//! What every slot does, for `/slots`. The engine's thread writes it between rounds, and requests read
//! it. It has no prompts and no outputs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forerun_decode::Slot;

use crate::client::Client;
use crate::request::Settings;

/// The slots as they were before the current round.
#[derive(Debug)]
pub(crate) struct Board(Mutex<Vec<Option<SlotTask>>>);

/// The sequence that a slot decodes.
#[derive(Debug, Clone)]
pub(crate) struct SlotTask {
    /// Its number, counted from the start of the server.
    pub(crate) id: u64,
    /// Whose it is.
    pub(crate) client: Client,
    /// How its tokens are drawn.
    pub(crate) settings: Arc<Settings>,
    /// Whether anything may be drafted for it.
    pub(crate) speculative: bool,
    /// Tokens of its prompt: all, those that were cached, and those that were prefilled.
    pub(crate) prompt_len: usize,
    pub(crate) cached: usize,
    pub(crate) prefilled: u64,
    /// Tokens decoded.
    pub(crate) decoded: u64,
    /// Whether there is a line break among them.
    pub(crate) has_new_line: bool,
}

impl Board {
    /// So many slots, all idle.
    pub(crate) fn new(slot_count: usize) -> Self {
        Self(Mutex::new(vec![None; slot_count]))
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Option<SlotTask>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These slots are busy with these sequences, and all others idle.
    pub(crate) fn show(&self, busy: impl Iterator<Item = (Slot, SlotTask)>) {
        let mut slots = self.slots();
        slots.fill(None);
        for (slot, task) in busy {
            if let Some(place) = slots.get_mut(slot.0 as usize) {
                *place = Some(task);
            }
        }
    }

    /// What each slot does; `None` for one that is idle.
    pub(crate) fn tasks(&self) -> Vec<Option<SlotTask>> {
        self.slots().clone()
    }
}
