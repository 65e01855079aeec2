//! What the cache holds, in blocks, for Dynamo's router.

use std::collections::HashMap;
use std::sync::Arc;

use dynamo_backend_common::KvEventPublisher;
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
    KvCacheStoreData, KvCacheStoredBlockData, compute_block_hash_for_seq,
    compute_seq_hash_for_block,
};
use forerun_decode::{Slot, Token};
use forerun_serve::CacheWatch;
use parking_lot::Mutex;

/// Tokens of a block. Ours are cached one by one; the router counts in these.
pub const BLOCK: u32 = 16;

/// The same, to count with.
pub(crate) const BLOCK_LEN: usize = BLOCK as usize;

/// The blocks of all slots, shared between the thread that has the cache and the publisher.
#[derive(Clone, Default)]
pub(crate) struct Blocks(Arc<Mutex<Held>>);

#[derive(Default)]
struct Held {
    /// What each slot holds: its tokens, and a hash of each block with all before it.
    slots: HashMap<u32, (Vec<u32>, Vec<u64>)>,
    /// In how many slots a block is.
    count: HashMap<u64, usize>,
    publisher: Option<Arc<KvEventPublisher>>,
    events: u64,
}

impl Blocks {
    /// Tells this publisher from now on, and of what is held already.
    pub(crate) fn publish_to(&self, publisher: Arc<KvEventPublisher>) {
        let mut held = self.0.lock();
        held.publisher = Some(publisher);
        let slots: Vec<Vec<u32>> = held.slots.values().map(|(tokens, _)| tokens.clone()).collect();
        for tokens in slots {
            held.store(&tokens, 0);
        }
    }
}

impl CacheWatch for Blocks {
    fn holds(&mut self, slot: Slot, tokens: &[Token]) {
        let whole = tokens.len() / BLOCK_LEN * BLOCK_LEN;
        let tokens: Vec<u32> = tokens[..whole].iter().map(|token| token.0).collect();
        self.0.lock().changed(slot.0, tokens);
    }
}

impl Held {
    fn changed(&mut self, slot: u32, tokens: Vec<u32>) {
        let (old, old_hashes) = self.slots.remove(&slot).unwrap_or_default();
        let same =
            old.chunks(BLOCK_LEN).zip(tokens.chunks(BLOCK_LEN)).take_while(|(a, b)| a == b).count();
        let hashes = hashes(&tokens);
        let gone: Vec<u64> = old_hashes[same..].to_vec();
        let new: Vec<u64> = hashes[same..].to_vec();
        self.slots.insert(slot, (tokens.clone(), hashes));
        let mut removed = Vec::new();
        for hash in gone {
            let count = self.count.entry(hash).or_insert(1);
            *count -= 1;
            if *count == 0 {
                self.count.remove(&hash);
                removed.push(ExternalSequenceBlockHash(hash));
            }
        }
        for hash in &new {
            *self.count.entry(*hash).or_default() += 1;
        }
        if !removed.is_empty() {
            self.publish(KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: removed }));
        }
        if !new.is_empty() {
            self.store(&tokens, same);
        }
    }

    /// Tells of the blocks of a text from this one on.
    fn store(&mut self, tokens: &[u32], from: usize) {
        let local = local_hashes(tokens);
        let whole = hashes(tokens);
        let block = |at: usize| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(whole[at]),
            tokens_hash: local[at],
            mm_extra_info: None,
        };
        let data = KvCacheStoreData {
            parent_hash: from.checked_sub(1).map(|at| ExternalSequenceBlockHash(whole[at])),
            start_position: None,
            blocks: (from..whole.len()).map(block).collect(),
        };
        if !data.blocks.is_empty() {
            self.publish(KvCacheEventData::Stored(data));
        }
    }

    fn publish(&mut self, data: KvCacheEventData) {
        let Some(publisher) = &self.publisher else { return };
        self.events += 1;
        // Where it is gone, so is the worker.
        let _ = publisher.publish(KvCacheEvent { event_id: self.events, data, dp_rank: 0 });
    }
}

fn local_hashes(tokens: &[u32]) -> Vec<dynamo_kv_router::protocols::LocalBlockHash> {
    compute_block_hash_for_seq(tokens, BLOCK, BlockHashOptions::default())
}

/// A hash of each block and all before it.
fn hashes(tokens: &[u32]) -> Vec<u64> {
    compute_seq_hash_for_block(&local_hashes(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(len: u32) -> Vec<Token> {
        (0..len).map(Token).collect()
    }

    #[test]
    fn blocks_are_counted_over_slots() {
        let mut blocks = Blocks::default();
        blocks.holds(Slot(0), &text(40));
        blocks.holds(Slot(1), &text(33));
        assert_eq!(blocks.0.lock().count.values().copied().collect::<Vec<_>>(), [2, 2]);
        // The second is another text now; the first one's blocks stay.
        let mut other = text(40);
        other[0] = Token(999);
        blocks.holds(Slot(1), &other);
        assert_eq!(blocks.0.lock().count.len(), 4, "the hash of a block knows all before it");
        blocks.holds(Slot(0), &text(16));
        blocks.holds(Slot(1), &[]);
        assert_eq!(blocks.0.lock().count.len(), 1);
    }
}
