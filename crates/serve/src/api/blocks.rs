//! An answer as a row of blocks, as the Messages and the Responses API have it: thoughts, text and
//! calls, one after the other.

use crate::dialect::Part;

/// What a block is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Thought,
    Text,
    /// A call of this function.
    Call(String),
}

/// What happens to the blocks of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BlockEvent {
    Open(BlockKind),
    /// More of the block that is open.
    More(String),
    Close,
}

/// Makes blocks of an answer's parts.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    open: Option<BlockKind>,
}

impl Blocks {
    /// What these parts do to the blocks.
    pub(crate) fn push(&mut self, parts: Vec<Part>) -> Vec<BlockEvent> {
        let mut events = Vec::new();
        for part in parts {
            match part {
                Part::Thought(text) => self.add(BlockKind::Thought, text, &mut events),
                Part::Text(text) => self.add(BlockKind::Text, text, &mut events),
                Part::Call(name) => self.open(BlockKind::Call(name), &mut events),
                Part::Arguments(text) => events.push(BlockEvent::More(text)),
            }
        }
        events
    }

    /// The answer is over.
    pub(crate) fn finish(&mut self) -> Vec<BlockEvent> {
        let open = self.open.take();
        open.map(|_| BlockEvent::Close).into_iter().collect()
    }

    fn open(&mut self, kind: BlockKind, events: &mut Vec<BlockEvent>) {
        if self.open.replace(kind.clone()).is_some() {
            events.push(BlockEvent::Close);
        }
        events.push(BlockEvent::Open(kind));
    }

    fn add(&mut self, kind: BlockKind, text: String, events: &mut Vec<BlockEvent>) {
        if self.open.as_ref() != Some(&kind) {
            self.open(kind, events);
        }
        events.push(BlockEvent::More(text));
    }
}

/// Whole blocks: what each is, and its text.
pub(crate) fn whole_blocks(parts: Vec<Part>) -> Vec<(BlockKind, String)> {
    let mut blocks: Vec<(BlockKind, String)> = Vec::new();
    for event in Blocks::default().push(parts) {
        match event {
            BlockEvent::Open(kind) => blocks.push((kind, String::new())),
            BlockEvent::More(text) => {
                if let Some((_, block)) = blocks.last_mut() {
                    block.push_str(&text);
                }
            }
            BlockEvent::Close => {}
        }
    }
    blocks
}
