//! Sets of characters, and of the bytes they begin with in UTF-8.

use std::ops::{BitOr, BitOrAssign};

/// The number of the last character.
const LAST: u32 = char::MAX as u32;
/// The numbers among those of characters that are of no character.
const SURROGATES: (u32, u32) = (0xd800, 0xdfff);

/// A set of characters: their numbers, as ranges that are sorted, apart, and include their ends.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Chars(Vec<(u32, u32)>);

impl Chars {
    /// The characters of these ranges, which may overlap.
    pub(super) fn new(ranges: &[(char, char)]) -> Self {
        let mut numbers = Vec::with_capacity(ranges.len());
        for &(first, last) in ranges {
            let (first, last) = (u32::from(first), u32::from(last));
            numbers.push((first, last.min(SURROGATES.0 - 1)));
            numbers.push((first.max(SURROGATES.1 + 1), last));
        }
        numbers.retain(|(first, last)| first <= last);
        numbers.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for (first, last) in numbers {
            match merged.last_mut() {
                Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// Every character.
    pub(super) fn all() -> Self {
        Self::new(&[('\0', char::MAX)])
    }

    /// This character alone.
    pub(super) fn one(char: char) -> Self {
        Self::new(&[(char, char)])
    }

    /// Every other character.
    pub(super) fn negated(&self) -> Self {
        let mut taken = self.0.clone();
        taken.push(SURROGATES);
        taken.sort_unstable();
        let mut left = Vec::with_capacity(taken.len() + 1);
        let mut next = 0;
        for (first, last) in taken {
            if next < first {
                left.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= LAST {
            left.push((next, LAST));
        }
        Self(left)
    }

    /// Whether there is no character.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges, by number, ends included.
    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.0
    }

    /// Whether some character is in both.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let (mut ours, mut theirs) = (self.0.as_slice(), other.0.as_slice());
        while let ([our, our_rest @ ..], [their, their_rest @ ..]) = (ours, theirs) {
            if our.0 <= their.1 && their.0 <= our.1 {
                return true;
            }
            if our.1 < their.1 {
                ours = our_rest;
            } else {
                theirs = their_rest;
            }
        }
        false
    }

    /// The bytes that the characters begin with.
    pub(super) fn leads(&self) -> Bytes {
        let mut leads = Bytes::default();
        // By the number of bytes: the first and the last character, the lead of the number 0, and
        // how many bits of the number are left to the other bytes.
        let bands = [
            (0, 0x7f, 0, 0),
            (0x80, 0x7ff, 0xc0, 6),
            (0x800, 0xffff, 0xe0, 12),
            (0x10000, LAST, 0xf0, 18),
        ];
        for &(first, last) in &self.0 {
            for (band_first, band_last, lead, bits) in bands {
                let (first, last) = (first.max(band_first), last.min(band_last));
                if first <= last {
                    (lead + (first >> bits)..=lead + (last >> bits))
                        .for_each(|byte| leads.add(byte));
                }
            }
        }
        leads
    }
}

/// A set of bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Bytes([u64; 4]);

impl Bytes {
    fn add(&mut self, byte: u32) {
        self.0[byte as usize / 64] |= 1 << (byte % 64);
    }

    /// Whether some byte is in both.
    pub(super) fn overlaps(self, other: Self) -> bool {
        std::iter::zip(self.0, other.0).any(|(ours, theirs)| ours & theirs != 0)
    }
}

impl BitOr for Bytes {
    type Output = Self;

    fn bitor(mut self, other: Self) -> Self {
        self |= other;
        self
    }
}

impl BitOrAssign for Bytes {
    fn bitor_assign(&mut self, other: Self) {
        for (ours, theirs) in std::iter::zip(&mut self.0, other.0) {
            *ours |= theirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(chars: &Chars, char: char) -> bool {
        chars.overlaps(&Chars::one(char))
    }

    #[test]
    fn ranges_are_merged() {
        let chars = Chars::new(&[('f', 'h'), ('a', 'c'), ('d', 'd'), ('g', 'z')]);
        assert_eq!(chars.ranges(), [(0x61, 0x64), (0x66, 0x7a)]);
    }

    #[test]
    fn a_character_is_in_a_set_or_in_its_negation() {
        let sets = [
            Chars::new(&[]),
            Chars::all(),
            Chars::one('\0'),
            Chars::one(char::MAX),
            Chars::new(&[('a', 'z'), ('\u{d000}', '\u{e010}'), ('é', 'ü')]),
        ];
        for set in sets {
            let rest = set.negated();
            assert!(!set.overlaps(&rest), "{set:?}");
            assert_eq!(rest.negated(), set);
            for char in
                ['\0', 'a', 'm', 'z', '\u{7f}', 'é', '\u{d7ff}', '\u{e000}', '😀', char::MAX]
            {
                assert!(contains(&set, char) != contains(&rest, char), "{char:?} of {set:?}");
            }
        }
        assert!(Chars::all().negated().is_empty());
    }

    #[test]
    fn leads_are_the_first_bytes_of_the_characters() {
        let encoded = |char: char| u32::from(char.encode_utf8(&mut [0; 4]).as_bytes()[0]);
        let sets = [
            Chars::new(&[('a', 'c'), ('\u{7e}', '\u{81}')]),
            Chars::new(&[('\u{7ff}', '\u{800}'), ('\u{ffff}', '\u{10000}')]),
            Chars::one('\u{10ffff}'),
            Chars::all(),
        ];
        for set in sets {
            let mut expected = Bytes::default();
            ('\0'..=char::MAX)
                .filter(|&c| contains(&set, c))
                .for_each(|c| expected.add(encoded(c)));
            assert_eq!(set.leads(), expected, "{set:?}");
        }
    }
}
