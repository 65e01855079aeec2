//! Philox4x32-10 (Salmon et al. 2011), the counter-based generator of cuRAND, PyTorch and NumPy:
//! any number of the stream is a function of the seed and its place alone.
//!
//! That is what the coupled rule needs, and it lets an engine on other hardware reproduce an
//! output.

use std::convert::Infallible;

use rand_core::TryRng;

/// A seeded generator whose output is fixed for all time and platforms.
///
/// ```
/// use forerun_verify::{Philox, rand_core::Rng};
/// let mut one = Philox::new(42);
/// let mut two = Philox::new(42);
/// assert_eq!(one.next_u64(), two.next_u64());
/// ```
#[derive(Debug, Clone)]
pub struct Philox {
    key: [u32; 2],
    blocks: u64,
    words: [u32; 4],
    used: usize,
}

impl Philox {
    /// A stream for this seed.
    pub fn new(seed: u64) -> Self {
        Self { key: halves(seed), blocks: 0, words: [0; 4], used: 4 }
    }

    fn next_word(&mut self) -> u32 {
        if self.used == 4 {
            let [low, high] = halves(self.blocks);
            self.words = philox([low, high, 0, STREAM], self.key);
            self.blocks += 1;
            self.used = 0;
        }
        self.used += 1;
        self.words[self.used - 1]
    }
}

/// Keeps sequential streams apart from the noise of the coupled rule under the same seed.
const STREAM: u32 = 1;
/// Marks the counters of [`noise_pair`].
const NOISE: u32 = 2;

impl TryRng for Philox {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.next_word())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let low = self.next_word();
        let high = self.next_word();
        Ok(u64::from(low) | u64::from(high) << 32)
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Infallible> {
        for bytes in dst.chunks_mut(4) {
            bytes.copy_from_slice(&self.next_word().to_le_bytes()[..bytes.len()]);
        }
        Ok(())
    }
}

/// The 64 bits of two neighbouring indices at one position: `2 * pair` and `2 * pair + 1`.
#[inline(always)]
pub(crate) fn noise_pair(seed: u64, position: u64, pair: u32) -> [u64; 2] {
    let [low, high] = halves(position);
    let words = philox([pair, low, high, NOISE], halves(seed));
    [
        u64::from(words[0]) | u64::from(words[1]) << 32,
        u64::from(words[2]) | u64::from(words[3]) << 32,
    ]
}

#[expect(clippy::cast_possible_truncation, reason = "splitting a word is the point")]
#[inline(always)]
fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// Ten rounds of Philox4x32 over one counter.
#[inline(always)]
fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    const MULTIPLY: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let (mut words, mut key) = (counter, key);
    for _ in 0..10 {
        let [low0, high0] = halves(u64::from(words[0]) * MULTIPLY[0]);
        let [low1, high1] = halves(u64::from(words[2]) * MULTIPLY[1]);
        words = [high1 ^ words[1] ^ key[0], low1, high0 ^ words[3] ^ key[1], low0];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers published with Random123 (kat_vectors, philox4x32-10).
    #[test]
    fn the_published_answers_are_met() {
        let ones = u32::MAX;
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([ones; 4], [ones; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
