//! The sizes of a student, and the names and sizes of what is trained.

/// Which numbers of a head are turned together by the rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// Neighbours, as in files of the llama architecture.
    Neighbours,
    /// One of each half, as in those of qwen2, qwen3 and gemma3.
    Halves,
}

/// What becomes of the gate of a feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// Times its logistic function.
    Silu,
    /// Times the normal distribution's, by its usual approximation.
    Gelu,
}

/// Blocks that see the last tokens alone.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// How many they see, a token itself included.
    pub len: usize,
    /// The base of their rotary embedding.
    pub base: f64,
    /// Which blocks they are.
    pub blocks: Vec<bool>,
}

/// Embeddings and output that are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainedVocab {
    /// One tensor is both.
    Tied,
    /// There is one of each.
    Separate,
}

/// The sizes of a student, and what is particular to its architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Numbers of a token in the residual stream.
    pub width: usize,
    /// Blocks.
    pub blocks: usize,
    /// Numbers between the two products of a feed-forward layer.
    pub feed_forward: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub key_heads: usize,
    /// Numbers of a head.
    pub head: usize,
    /// Whether queries, keys and values have a bias.
    pub biased: bool,
    /// Whether there are norms of each head of queries and keys.
    pub normed_heads: bool,
    /// Whether there are norms after attention and feed-forward layers too.
    pub normed_results: bool,
    /// What becomes of gates.
    pub activation: Activation,
    /// What embeddings are multiplied by.
    pub embedding_scale: f64,
    /// What the rotary embedding turns together.
    pub pairs: Pairs,
    /// Its base.
    pub base: f64,
    /// What norms add to the mean square.
    pub epsilon: f64,
    /// Blocks that see the last tokens alone.
    pub window: Option<Window>,
    /// Embeddings and output, if they are trained too.
    pub trained_vocab: Option<TrainedVocab>,
}

/// The trained tensors of a block, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    AttnNorm,
    Query,
    Key,
    Value,
    AttnOutput,
    FfnNorm,
    Gate,
    Up,
    Down,
    QueryBias,
    KeyBias,
    ValueBias,
    QueryNorm,
    KeyNorm,
    AttnResultNorm,
    FfnResultNorm,
}

impl Part {
    const ALL: [Self; 16] = [
        Self::AttnNorm,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::AttnOutput,
        Self::FfnNorm,
        Self::Gate,
        Self::Up,
        Self::Down,
        Self::QueryBias,
        Self::KeyBias,
        Self::ValueBias,
        Self::QueryNorm,
        Self::KeyNorm,
        Self::AttnResultNorm,
        Self::FfnResultNorm,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::AttnNorm => "attn_norm.weight",
            Self::Query => "attn_q.weight",
            Self::Key => "attn_k.weight",
            Self::Value => "attn_v.weight",
            Self::AttnOutput => "attn_output.weight",
            Self::FfnNorm => "ffn_norm.weight",
            Self::Gate => "ffn_gate.weight",
            Self::Up => "ffn_up.weight",
            Self::Down => "ffn_down.weight",
            Self::QueryBias => "attn_q.bias",
            Self::KeyBias => "attn_k.bias",
            Self::ValueBias => "attn_v.bias",
            Self::QueryNorm => "attn_q_norm.weight",
            Self::KeyNorm => "attn_k_norm.weight",
            Self::AttnResultNorm => "post_attention_norm.weight",
            Self::FfnResultNorm => "post_ffw_norm.weight",
        }
    }
}

/// The name of the last norm's weight.
pub const OUTPUT_NORM: &str = "output_norm.weight";
/// What tokens are read by.
pub const EMBEDDING: &str = "token_embd.weight";
/// What they are said by, if that is another tensor.
pub const OUTPUT: &str = "output.weight";

impl Shape {
    fn queries(&self) -> usize {
        self.heads * self.head
    }

    fn keys(&self) -> usize {
        self.key_heads * self.head
    }

    fn parts(&self) -> impl Iterator<Item = Part> {
        Part::ALL.into_iter().filter(|part| match part {
            Part::QueryBias | Part::KeyBias | Part::ValueBias => self.biased,
            Part::QueryNorm | Part::KeyNorm => self.normed_heads,
            Part::AttnResultNorm | Part::FfnResultNorm => self.normed_results,
            _ => true,
        })
    }

    fn sizes(&self, part: Part) -> Vec<usize> {
        let (width, wide) = (self.width, self.feed_forward);
        match part {
            Part::AttnNorm | Part::FfnNorm | Part::AttnResultNorm | Part::FfnResultNorm => {
                vec![width]
            }
            Part::Query => vec![self.queries(), width],
            Part::Key | Part::Value => vec![self.keys(), width],
            Part::AttnOutput => vec![width, self.queries()],
            Part::Gate | Part::Up => vec![wide, width],
            Part::Down => vec![width, wide],
            Part::QueryBias => vec![self.queries()],
            Part::KeyBias | Part::ValueBias => vec![self.keys()],
            Part::QueryNorm | Part::KeyNorm => vec![self.head],
        }
    }

    /// The trained tensors: names and sizes, in the order of [`Student::weights`](super::Student::weights).
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let block = |block: usize| {
            self.parts().map(move |part| (block_name(block, part.name()), self.sizes(part)))
        };
        let last = (OUTPUT_NORM.to_owned(), vec![self.width]);
        let vocab = match self.trained_vocab {
            None => &[][..],
            Some(TrainedVocab::Tied) => &[EMBEDDING],
            Some(TrainedVocab::Separate) => &[EMBEDDING, OUTPUT],
        };
        let vocab = vocab.iter().map(|&name| (name.to_owned(), vec![self.vocab, self.width]));
        (0..self.blocks).flat_map(block).chain([last]).chain(vocab).collect()
    }

    /// How many of the trained tensors are neither embeddings nor output. Those come last.
    pub(super) fn inner_tensors(&self) -> usize {
        self.blocks * self.parts().count() + 1
    }

    /// The names of a block's tensors, without the block's number.
    pub fn block_tensors(&self) -> Vec<&'static str> {
        self.parts().map(Part::name).collect()
    }

    /// How many numbers are trained.
    pub fn trained(&self) -> usize {
        self.tensors().iter().map(|(_, sizes)| sizes.iter().product::<usize>()).sum()
    }

    /// Numbers that a pass forward keeps for the pass back, for each token of a sequence of `len`: what
    /// each operation gives.
    pub fn kept_per_token(&self, len: usize) -> usize {
        let mut each = 10 * self.width + 4 * self.feed_forward;
        each += 9 * self.queries() + 5 * self.keys() + 5 * self.heads * len;
        if self.normed_heads {
            each += 3 * (self.queries() + self.keys());
        }
        if self.normed_results {
            each += 6 * self.width;
        }
        self.blocks * each
    }

    /// Where a part of a block is among the trained tensors, if there is such a part.
    pub(super) fn place(&self, block: usize, part: Part) -> Option<usize> {
        let place = self.parts().position(|it| it == part)?;
        Some(block * self.parts().count() + place)
    }

    /// What a block's queries see of the tokens before them, if not all.
    pub(super) fn window_of(&self, block: usize) -> Option<&Window> {
        self.window.as_ref().filter(|window| window.blocks[block])
    }
}

/// A tensor's name in its block.
pub fn block_name(block: usize, part: &str) -> String {
    format!("blk.{block}.{part}")
}
