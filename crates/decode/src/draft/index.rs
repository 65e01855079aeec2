//! A hash index of places, for keys that can be read back at the place itself.
//!
//! Stores no keys: eight bytes an entry, and whoever looks something up decides whether a place is
//! the right one. Nothing is taken out but all at once, and no answer depends on the order of
//! entries.

use forerun_verify::Token;

/// What is hashed: a row of numbers, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u64);

impl Key {
    pub(super) const EMPTY: Self = Self(0);

    pub(super) fn with(self, part: u32) -> Self {
        // An odd factor near 2^64 / golden ratio; turning brings its well mixed bits down again.
        Self((self.0.rotate_left(26) ^ u64::from(part)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// The keys of the last token, the last two, and so on.
    pub(super) fn backwards(tokens: &[Token]) -> impl Iterator<Item = Self> {
        tokens.iter().rev().scan(Self::EMPTY, |key, token| {
            *key = key.with(token.0);
            Some(*key)
        })
    }

    fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

const FREE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Entry {
    tag: u32,
    place: u32,
}

/// Keys to places, by linear probing, at most three quarters full.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    entries: Vec<Entry>,
    len: usize,
}

impl Index {
    /// The place of a key; `same` decides whether a place has the key.
    pub(super) fn get(&self, key: Key, same: impl Fn(u32) -> bool) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        let entry = self.entries[self.probe(key.tag(), same)];
        (entry.place != FREE).then_some(entry.place)
    }

    /// Puts a key's place, instead of the one it had.
    pub(super) fn put(&mut self, key: Key, place: u32, same: impl Fn(u32) -> bool) {
        assert!(place != FREE, "places are fewer than 2^32 - 1");
        if 4 * (self.len + 1) > 3 * self.entries.len() {
            self.grow();
        }
        let at = self.probe(key.tag(), same);
        self.len += usize::from(self.entries[at].place == FREE);
        self.entries[at] = Entry { tag: key.tag(), place };
    }

    /// Forgets all, but not the allocated memory.
    pub(super) fn clear(&mut self) {
        self.entries.fill(Entry { tag: 0, place: FREE });
        self.len = 0;
    }

    /// Where the key is, or where it would be put.
    fn probe(&self, tag: u32, same: impl Fn(u32) -> bool) -> usize {
        let wide = u64::from(tag) * self.entries.len() as u64;
        let mut at = usize::try_from(wide >> 32).expect("below the number of entries");
        loop {
            let entry = self.entries[at];
            if entry.place == FREE || (entry.tag == tag && same(entry.place)) {
                return at;
            }
            at = if at + 1 == self.entries.len() { 0 } else { at + 1 };
        }
    }

    fn grow(&mut self) {
        let len = (2 * self.entries.len()).max(16);
        let free = Entry { tag: 0, place: FREE };
        let entries = std::mem::replace(&mut self.entries, vec![free; len]);
        for entry in entries.into_iter().filter(|entry| entry.place != FREE) {
            let at = self.probe(entry.tag, |_| false);
            self.entries[at] = entry;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_leads_to_its_latest_place() {
        let keys: Vec<u32> = (0..500).map(|at| at * 7 % 100).collect();
        let mut index = Index::default();
        let key = |part| Key::EMPTY.with(part);
        assert_eq!(index.get(key(3), |_| true), None);
        for (place, part) in (0..).zip(&keys) {
            index.put(key(*part), place, |other| keys[other as usize] == *part);
        }
        for part in 0..100 {
            let latest = keys.iter().rposition(|other| *other == part);
            let found = index.get(key(part), |place| keys[place as usize] == part);
            assert_eq!(found.map(|place| place as usize), latest);
        }
        index.clear();
        assert_eq!(index.get(key(3), |_| true), None);
    }

    #[test]
    fn keys_of_equal_hash_are_told_apart() {
        let parts = [1, 2, 3];
        let mut index = Index::default();
        for place in 0..3 {
            index.put(Key::EMPTY, place, |other| parts[other as usize] == parts[place as usize]);
        }
        for place in 0..3 {
            assert_eq!(index.get(Key::EMPTY, |other| other == place), Some(place));
        }
    }
}
