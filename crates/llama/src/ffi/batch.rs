//! The arrays of a pass, reused between passes so that none is allocated in the steady state.

use std::ops::Range;
use std::ptr;

use forerun_verify::Token;
use llama_cpp_sys_2 as sys;

/// Tokens with their positions and the sequences they belong to.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    tokens: Vec<sys::llama_token>,
    positions: Vec<sys::llama_pos>,
    // The sequences of entry `i` are `ids[starts[i]..][..counts[i]]`.
    starts: Vec<usize>,
    counts: Vec<i32>,
    ids: Vec<sys::llama_seq_id>,
    wants_row: Vec<i8>,
    // A hidden row for each entry of a head, one after the other.
    hidden: Vec<f32>,
    hidden_len: usize,
    // Whether entries are their hidden rows alone.
    tokenless: bool,
    // Rebuilt by `view`: which rows are computed.
    computed: Vec<i8>,
    // Rebuilt by `view`; holds nothing that outlives the borrow it is given for.
    pointers: Vec<*mut sys::llama_seq_id>,
}

// SAFETY: `pointers` is only read through the view it was just rebuilt for.
unsafe impl Send for Batch {}

/// Where in a batch the sequences of an entry are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids {
    start: usize,
    count: i32,
}

impl Batch {
    /// Forgets all entries.
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.starts.clear();
        self.counts.clear();
        self.ids.clear();
        self.wants_row.clear();
        self.hidden.clear();
        self.hidden_len = 0;
        self.tokenless = false;
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Notes a set of sequences for the entries to come.
    pub(crate) fn ids(&mut self, ids: impl Iterator<Item = i32>) -> Ids {
        let start = self.ids.len();
        self.ids.extend(ids);
        let count = i32::try_from(self.ids.len() - start).expect("at most 256 sequences");
        Ids { start, count }
    }

    /// Appends an entry.
    pub(crate) fn push(&mut self, token: Token, position: usize, ids: Ids) {
        self.tokens.push(i32::try_from(token.0).expect("a checked token is in range"));
        self.positions.push(i32::try_from(position).expect("a position is within the context"));
        self.starts.push(ids.start);
        self.counts.push(ids.count);
        self.wants_row.push(0);
    }

    /// Appends the hidden rows of entries that were appended, each of so many numbers.
    pub(crate) fn push_hidden(&mut self, rows: &[f32], len: usize) {
        self.hidden.extend_from_slice(rows);
        self.hidden_len = len;
    }

    /// Leaves the hidden rows of all entries alone.
    pub(crate) fn drop_tokens(&mut self) {
        self.tokenless = true;
    }

    /// Requests the row after an entry.
    pub(crate) fn want_row(&mut self, index: usize) {
        self.wants_row[index] = 1;
    }

    /// Whether the row after an entry was requested.
    pub(crate) fn wants_row(&self, index: usize) -> bool {
        self.wants_row[index] != 0
    }

    /// Some of the entries as C wants them: valid as long as `self` stays borrowed and unchanged.
    pub(super) fn view(&mut self, range: Range<usize>) -> sys::llama_batch {
        let ids = self.ids.as_mut_ptr();
        self.computed.clear();
        self.computed.extend_from_slice(&self.wants_row[range.clone()]);
        // A head's graph computes the rows of all entries or of none.
        if self.hidden_len > 0 && self.computed.contains(&1) {
            self.computed.fill(1);
        }
        let hidden = match self.hidden_len {
            0 => ptr::null_mut(),
            len => self.hidden[range.start * len..range.end * len].as_mut_ptr(),
        };
        self.pointers.clear();
        // `wrapping_add` stays within `ids`, as `starts` was taken from its length.
        self.pointers
            .extend(self.starts[range.clone()].iter().map(|&start| ids.wrapping_add(start)));
        sys::llama_batch {
            n_tokens: i32::try_from(range.len()).expect("a batch fits an i32"),
            token: match self.tokenless {
                true => ptr::null_mut(),
                false => self.tokens[range.clone()].as_mut_ptr(),
            },
            embd: hidden,
            pos: self.positions[range.clone()].as_mut_ptr(),
            n_seq_id: self.counts[range.clone()].as_mut_ptr(),
            seq_id: self.pointers.as_mut_ptr(),
            logits: self.computed.as_mut_ptr(),
        }
    }
}
