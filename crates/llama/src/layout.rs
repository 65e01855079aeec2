//! Where slots lie in llama.cpp's memory.
//!
//! Slots with cells of their own share a pass only if they lie next to each other: llama.cpp runs any others in
//! passes of their own, each of which reads all weights again. Which slots are in use is chosen by what they have
//! cached, so those in use are moved together.

/// The place of each slot in memory.
#[derive(Debug)]
pub(crate) struct SlotLayout {
    of: Vec<usize>,
}

impl SlotLayout {
    /// Each slot at its own number.
    pub(crate) fn new(slots: usize) -> Self {
        Self { of: (0..slots).collect() }
    }

    /// The place of a slot.
    pub(crate) fn of(&self, slot: usize) -> usize {
        self.of[slot]
    }

    /// Pairs of slots, the first in use and the second not, that are to change places so that all in use lie next to
    /// each other: as few as possible.
    pub(crate) fn changes(&self, in_use: impl Iterator<Item = usize>) -> Vec<(usize, usize)> {
        let mut used = vec![false; self.of.len()];
        let mut slot_at = vec![0; self.of.len()];
        self.of.iter().enumerate().for_each(|(slot, &place)| slot_at[place] = slot);
        in_use.for_each(|slot| used[self.of[slot]] = true);
        let count = used.iter().filter(|used| **used).count();
        let within = |start: usize| used[start..start + count].iter().filter(|used| **used).count();
        // Of windows as good, the first: slots then gather at the beginning.
        let windows = (0..=used.len() - count).rev();
        let Some(start) = windows.max_by_key(|start| within(*start)) else { return Vec::new() };
        let inside = start..start + count;
        let movers = (0..used.len()).filter(|place| used[*place] && !inside.contains(place));
        let free = inside.clone().filter(|place| !used[*place]);
        movers.zip(free).map(|(from, to)| (slot_at[from], slot_at[to])).collect()
    }

    /// Lets two slots change places.
    pub(crate) fn change(&mut self, one: usize, other: usize) {
        self.of.swap(one, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(layout: &mut SlotLayout, in_use: &[usize]) -> usize {
        let changes = layout.changes(in_use.iter().copied());
        changes.iter().for_each(|(one, other)| layout.change(*one, *other));
        let mut at: Vec<usize> = in_use.iter().map(|slot| layout.of(*slot)).collect();
        at.sort_unstable();
        assert!(at.windows(2).all(|pair| pair[1] == pair[0] + 1), "{in_use:?} at {at:?}");
        changes.len()
    }

    #[test]
    fn slots_in_use_come_to_lie_next_to_each_other_by_as_few_changes_as_can_be() {
        let mut layout = SlotLayout::new(6);
        for (in_use, changes) in [
            (&[2][..], 0),
            (&[0, 1, 2], 0),
            (&[0, 5], 1),
            // Slot 5 is at 1 now.
            (&[0, 5], 0),
            (&[0, 5, 2, 4], 1),
            (&[0, 1, 2, 3, 4, 5], 0),
        ] {
            assert_eq!(settled(&mut layout, in_use), changes, "{in_use:?} in {layout:?}");
        }
    }

    #[test]
    fn whatever_is_in_use_one_run_is_left() {
        let mut layout = SlotLayout::new(7);
        for number in 1..128_usize {
            // All sets of slots but the empty one, in an order that jumps.
            let set = number * 37 % 128;
            let in_use: Vec<usize> = (0..7).filter(|slot| (set >> slot) & 1 == 1).collect();
            settled(&mut layout, &in_use);
        }
    }
}
