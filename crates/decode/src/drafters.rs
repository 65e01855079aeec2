//! A decoder's drafters, by id.

use std::ops::{Index, IndexMut};

use crate::cost::Pass;
use crate::draft::{Drafter, DrafterId, DrafterInfo};

/// The drafters of a decoder. Ids count from zero, in the order in which they propose.
pub struct Drafters(Vec<Box<dyn Drafter>>);

impl Drafters {
    pub(crate) fn new(drafters: Vec<Box<dyn Drafter>>) -> Self {
        Self(drafters)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns what each is.
    pub fn infos(&self) -> Vec<DrafterInfo> {
        self.iter().map(|(id, drafter)| DrafterInfo { id, kind: drafter.kind() }).collect()
    }

    /// Iterates over all of them.
    pub fn iter(&self) -> impl Iterator<Item = (DrafterId, &dyn Drafter)> {
        self.0.iter().enumerate().map(|(index, drafter)| (DrafterId(index), &**drafter))
    }

    /// Iterates over all of them, to be told something or replaced.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (DrafterId, &mut Box<dyn Drafter>)> {
        self.0.iter_mut().enumerate().map(|(index, drafter)| (DrafterId(index), drafter))
    }

    /// Returns the passes of all since the last call.
    pub(crate) fn passes(&mut self) -> Vec<(DrafterId, Pass)> {
        let passes = |(id, drafter): (DrafterId, &mut Box<dyn Drafter>)| {
            drafter.passes().into_iter().map(move |pass| (id, pass))
        };
        self.iter_mut().flat_map(passes).collect()
    }
}

impl Index<DrafterId> for Drafters {
    type Output = dyn Drafter;

    fn index(&self, id: DrafterId) -> &Self::Output {
        &*self.0[id.0]
    }
}

impl IndexMut<DrafterId> for Drafters {
    fn index_mut(&mut self, id: DrafterId) -> &mut Self::Output {
        &mut *self.0[id.0]
    }
}
