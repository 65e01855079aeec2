//! Small models: a table of rows, another one after every prefix.

use rand_core::Rng;

use crate::dist::{Dist, Token};
use crate::philox::Philox;

/// The size of a model.
///
/// ```
/// # use forerun_verify::check::Shape;
/// let shape = Shape { vocab_len: 3, len: 2 };
/// assert_eq!(shape.vocab_len.pow(shape.len as u32), 9);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Tokens in the vocabulary.
    pub vocab_len: usize,
    /// Most tokens drafted in a round.
    pub len: usize,
}

/// How the rows of target and drafter relate.
///
/// ```
/// # use forerun_verify::check::Kind;
/// assert_eq!(Kind::ALL.len(), 11);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Unrelated.
    Random,
    /// The drafter is half the target.
    Mid,
    /// The drafter is nine tenths the target.
    Aligned,
    /// Mostly one and the same.
    Equal,
    /// Some tokens of either row have no probability.
    Sparse,
    /// No token has probability in both, or half of the target is the drafter.
    Disjoint,
    /// The target is certain.
    PointTarget,
    /// The drafter is certain.
    PointDraft,
    /// A token of either row is all but impossible.
    Tiny,
    /// Probabilities repeat within and across rows.
    Ties,
    /// The target loses its least token, the drafter all below 0.15.
    Truncated,
}

impl Kind {
    /// All kinds.
    ///
    /// ```
    /// # use forerun_verify::check::Kind;
    /// assert!(Kind::ALL.contains(&Kind::Ties));
    /// ```
    pub const ALL: [Self; 11] = [
        Self::Random,
        Self::Mid,
        Self::Aligned,
        Self::Equal,
        Self::Sparse,
        Self::Disjoint,
        Self::PointTarget,
        Self::PointDraft,
        Self::Tiny,
        Self::Ties,
        Self::Truncated,
    ];
}

/// A target and two drafters as tables: every prefix has rows of its own.
///
/// ```
/// # use forerun_verify::{check::*, Token};
/// let model = Model::random(Kind::PointTarget, Shape { vocab_len: 2, len: 1 }, 3);
/// let row = model.target(&[Token(1)]);
/// assert!(row.prob(Token(0)) == 1.0 || row.prob(Token(1)) == 1.0);
/// ```
#[derive(Debug, Clone)]
pub struct Model {
    shape: Shape,
    target: Vec<Dist>,
    drafts: [Vec<Dist>; 2],
}

impl Model {
    /// A model with these rows: `rows` gives the target's and the two drafters' after each
    /// prefix of at most `shape.len` tokens.
    ///
    /// # Panics
    /// If a row is of another vocabulary.
    ///
    /// ```
    /// # use forerun_verify::{check::*, *};
    /// let row = |weights: [f32; 2]| Dist::dense(weights.to_vec()).unwrap();
    /// // The example of the block verification paper.
    /// let model = Model::new(Shape { vocab_len: 2, len: 2 }, |_| {
    ///     [row([1.0, 2.0]), row([2.0, 1.0]), row([2.0, 1.0])]
    /// });
    /// let finding = examine(&model, &drafting::paths(1), &BlockRule)?;
    /// assert!((finding.accepted - 11.0 / 9.0).abs() < 1e-12);
    /// # Ok::<(), Refusal>(())
    /// ```
    pub fn new(shape: Shape, mut rows: impl FnMut(&[Token]) -> [Dist; 3]) -> Self {
        let mut model = Self { shape, target: vec![], drafts: [vec![], vec![]] };
        for index in 0..prefixes(shape) {
            let [target, one, two] = rows(&prefix_at(shape.vocab_len, index));
            for row in [&target, &one, &two] {
                assert_eq!(row.vocab_len(), shape.vocab_len, "a row of another vocabulary");
            }
            model.target.push(target);
            model.drafts[0].push(one);
            model.drafts[1].push(two);
        }
        model
    }

    /// A model drawn at random from a seed.
    ///
    /// ```
    /// # use forerun_verify::check::*;
    /// let shape = Shape { vocab_len: 3, len: 2 };
    /// let model = Model::random(Kind::Random, shape, 1);
    /// assert_eq!(model.target(&[]), Model::random(Kind::Random, shape, 1).target(&[]));
    /// assert_ne!(model.target(&[]), Model::random(Kind::Random, shape, 2).target(&[]));
    /// ```
    pub fn random(kind: Kind, shape: Shape, seed: u64) -> Self {
        let mut rng = Philox::new(seed);
        Self::new(shape, |_| random_rows(kind, shape.vocab_len, &mut rng))
    }

    /// The model's size.
    ///
    /// ```
    /// # use forerun_verify::check::*;
    /// let shape = Shape { vocab_len: 3, len: 2 };
    /// assert_eq!(Model::random(Kind::Ties, shape, 1).shape(), shape);
    /// ```
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The target's row after a prefix.
    ///
    /// # Panics
    /// If the prefix is longer than the model.
    ///
    /// ```
    /// # use forerun_verify::check::*;
    /// # let model = Model::random(Kind::Ties, Shape { vocab_len: 3, len: 2 }, 1);
    /// assert_eq!(model.target(&[]).vocab_len(), 3);
    /// ```
    pub fn target(&self, prefix: &[Token]) -> &Dist {
        &self.target[self.index(prefix)]
    }

    /// The row of drafter 0 or 1 after a prefix.
    ///
    /// # Panics
    /// If the prefix is longer than the model, or there is no such drafter.
    ///
    /// ```
    /// # use forerun_verify::check::*;
    /// # let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
    /// assert_ne!(model.draft(0, &[]), model.draft(1, &[]));
    /// ```
    pub fn draft(&self, drafter: usize, prefix: &[Token]) -> &Dist {
        &self.drafts[drafter][self.index(prefix)]
    }

    /// The target's probability of `tokens[from..]` after `tokens[..from]`.
    pub(super) fn chance_of(&self, tokens: &[Token], from: usize) -> f64 {
        (from..tokens.len()).map(|n| self.target(&tokens[..n]).prob(tokens[n])).product()
    }

    /// Calls `each` with every output of a length and the target's probability of it.
    ///
    /// ```
    /// # use forerun_verify::check::*;
    /// # let model = Model::random(Kind::Random, Shape { vocab_len: 3, len: 2 }, 1);
    /// let mut total = 0.0;
    /// model.each_output(2, &mut |_, probability| total += probability);
    /// assert!((total - 1.0_f64).abs() < 1e-12);
    /// ```
    pub fn each_output(&self, len: usize, each: &mut dyn FnMut(&[Token], f64)) {
        let count = self.shape.vocab_len.pow(u32::try_from(len).expect("a short output"));
        let shorter: usize = prefixes(Shape { len, ..self.shape }) - count;
        for index in shorter..shorter + count {
            let output = prefix_at(self.shape.vocab_len, index);
            each(&output, self.chance_of(&output, 0));
        }
    }

    fn index(&self, prefix: &[Token]) -> usize {
        assert!(prefix.len() <= self.shape.len, "a prefix of at most {} tokens", self.shape.len);
        prefix.iter().fold(0, |index, token| index * self.shape.vocab_len + token.index() + 1)
    }
}

/// How many prefixes of at most `len` tokens there are.
fn prefixes(shape: Shape) -> usize {
    (0..=shape.len).fold((0, 1), |(sum, power), _| (sum + power, power * shape.vocab_len)).0
}

/// The prefix at a place of the order by length.
fn prefix_at(vocab_len: usize, index: usize) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut index = index;
    while index > 0 {
        tokens.push(Token::at((index - 1) % vocab_len));
        index = (index - 1) / vocab_len;
    }
    tokens.reverse();
    tokens
}

/// A number in `(0, 1)`.
fn uniform(rng: &mut Philox) -> f64 {
    (f64::from(rng.next_u32()) + 0.5) / 4_294_967_296.0
}

fn below(rng: &mut Philox, bound: usize) -> usize {
    rng.next_u32() as usize % bound
}

/// A row drawn evenly from all rows: exponential weights.
fn flat(vocab_len: usize, rng: &mut Philox) -> Vec<f64> {
    normal((0..vocab_len).map(|_| -libm::log(uniform(rng))).collect())
}

fn normal(row: Vec<f64>) -> Vec<f64> {
    let mass: f64 = row.iter().sum();
    row.into_iter().map(|weight| weight / mass).collect()
}

fn mix(share: f64, one: &[f64], two: &[f64]) -> Vec<f64> {
    one.iter().zip(two).map(|(one, two)| share * one + (1.0 - share) * two).collect()
}

fn point(vocab_len: usize, rng: &mut Philox) -> Vec<f64> {
    let mut row = vec![0.0; vocab_len];
    row[below(rng, vocab_len)] = 1.0;
    row
}

fn thin_out(mut row: Vec<f64>, rng: &mut Philox) -> Vec<f64> {
    for _ in 0..below(rng, row.len()) {
        let token = below(rng, row.len());
        if row.iter().filter(|weight| **weight > 0.0).count() > 1 {
            row[token] = 0.0;
        }
    }
    normal(row)
}

fn random_rows(kind: Kind, vocab_len: usize, rng: &mut Philox) -> [Dist; 3] {
    let (target, draft, other) = (flat(vocab_len, rng), flat(vocab_len, rng), flat(vocab_len, rng));
    let (target, draft) = match kind {
        Kind::Random => (target, draft),
        Kind::Mid => (target.clone(), mix(0.5, &target, &draft)),
        Kind::Aligned => (target.clone(), mix(0.9, &target, &draft)),
        Kind::Equal => (target.clone(), if uniform(rng) < 0.7 { target } else { draft }),
        Kind::Sparse => (thin_out(target, rng), thin_out(draft, rng)),
        Kind::Disjoint => disjoint(target, draft, uniform(rng) < 0.5),
        Kind::PointTarget => (point(vocab_len, rng), draft),
        Kind::PointDraft => (target, point(vocab_len, rng)),
        Kind::Tiny => {
            let mut rows = [target, draft];
            for row in &mut rows {
                row[below(rng, vocab_len)] *= 1e-13;
            }
            let [target, draft] = rows;
            (target, draft)
        }
        Kind::Ties => {
            let mut row = || (0..vocab_len).map(|_| 1.0 + below(rng, 2) as f64).collect();
            (row(), row())
        }
        Kind::Truncated => truncated(target, draft),
    };
    [target, draft, other].map(|row| {
        #[expect(clippy::cast_possible_truncation, reason = "the row is what is stored")]
        let weights = row.into_iter().map(|weight| weight as f32).collect();
        Dist::dense(weights).expect("a random row has mass")
    })
}

/// The target on the upper half of the vocabulary, the drafter on the lower.
fn disjoint(mut target: Vec<f64>, mut draft: Vec<f64>, mixed: bool) -> (Vec<f64>, Vec<f64>) {
    let half = (target.len() / 2).max(1);
    target[..half].fill(0.0);
    draft[half..].fill(0.0);
    let (target, draft) = (normal(target), normal(draft));
    if mixed { (mix(0.5, &target, &draft), draft) } else { (target, draft) }
}

fn truncated(mut target: Vec<f64>, draft: Vec<f64>) -> (Vec<f64>, Vec<f64>) {
    let least = target.iter().copied().fold(f64::INFINITY, f64::min);
    target.iter_mut().for_each(|weight| *weight *= f64::from(u8::from(*weight > least)));
    let most = draft.iter().copied().fold(0.0, f64::max);
    let kept = draft.into_iter().map(|w| if w >= most.min(0.15) { w } else { 0.0 }).collect();
    (normal(target), normal(kept))
}
