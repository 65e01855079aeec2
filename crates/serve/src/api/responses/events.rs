//! The events of a response as it is decoded.

use serde_json::{Value, json};

use super::{item, item_id, prefix_of, text_part};
use crate::api::blocks::{BlockEvent, BlockKind, Blocks};
use crate::api::stream::Sink;
use crate::api::tools::call_id;
use crate::dialect::Part;

/// An item that is being written.
struct Open {
    kind: BlockKind,
    id: String,
    call: String,
    text: String,
}

/// Numbers events, and keeps the items.
#[derive(Default)]
pub(super) struct Events {
    number: u64,
    blocks: Blocks,
    open: Option<Open>,
    output: Vec<Value>,
}

impl Events {
    /// The items so far.
    pub(super) fn output(&self) -> &[Value] {
        &self.output
    }

    /// Sends an event. Returns `false` once the client has left.
    pub(super) async fn send(&mut self, sink: &Sink, name: &'static str, mut event: Value) -> bool {
        event["type"] = name.into();
        event["sequence_number"] = self.number.into();
        self.number += 1;
        sink.send_event(name, &event).await
    }

    /// Sends what parts add to the output; with a status, it is over. Returns `false` once the client
    /// has left.
    pub(super) async fn blocks(
        &mut self,
        sink: &Sink,
        parts: Vec<Part>,
        status: Option<&'static str>,
    ) -> bool {
        let mut changes = self.blocks.push(parts);
        if status.is_some() {
            changes.extend(self.blocks.finish());
        }
        let last = changes.len();
        for (index, change) in changes.into_iter().enumerate() {
            let status =
                if index + 1 == last { status.unwrap_or("completed") } else { "completed" };
            for (name, event) in self.events(change, status) {
                if !self.send(sink, name, event).await {
                    return false;
                }
            }
        }
        true
    }

    /// The events of a change.
    fn events(&mut self, change: BlockEvent, status: &str) -> Vec<(&'static str, Value)> {
        let output_index = self.output.len();
        match change {
            BlockEvent::Open(kind) => {
                let (id, call) = (item_id(prefix_of(&kind)), call_id());
                let added = item(&kind, &id, &call, "in_progress", None);
                let mut events = vec![(
                    "response.output_item.added",
                    json!({ "output_index": output_index, "item": added }),
                )];
                if kind == BlockKind::Text {
                    let part = json!({
                        "item_id": id, "output_index": output_index, "content_index": 0,
                        "part": text_part(""),
                    });
                    events.push(("response.content_part.added", part));
                }
                self.open = Some(Open { kind, id, call, text: String::new() });
                events
            }
            BlockEvent::More(text) => {
                let Some(open) = &mut self.open else { return Vec::new() };
                open.text.push_str(&text);
                let (name, index) = match open.kind {
                    BlockKind::Thought => ("response.reasoning_text.delta", Some(0)),
                    BlockKind::Text => ("response.output_text.delta", Some(0)),
                    BlockKind::Call(_) => ("response.function_call_arguments.delta", None),
                };
                let mut event =
                    json!({ "item_id": open.id, "output_index": output_index, "delta": text });
                if let Some(index) = index {
                    event["content_index"] = json!(index);
                }
                if open.kind == BlockKind::Text {
                    event["logprobs"] = json!([]);
                }
                vec![(name, event)]
            }
            BlockEvent::Close => {
                let Some(open) = self.open.take() else { return Vec::new() };
                let mut events = done(&open, output_index);
                let whole = item(&open.kind, &open.id, &open.call, status, Some(&open.text));
                self.output.push(whole.clone());
                events.push((
                    "response.output_item.done",
                    json!({ "output_index": output_index, "item": whole }),
                ));
                events
            }
        }
    }
}

/// The events that say the whole text of an item.
fn done(open: &Open, output_index: usize) -> Vec<(&'static str, Value)> {
    let Open { kind, id, text, .. } = open;
    let place = json!({ "item_id": id, "output_index": output_index });
    let with = |more: Value| {
        let mut event = place.clone();
        if let (Value::Object(event), Value::Object(more)) = (&mut event, more) {
            event.extend(more);
        }
        event
    };
    match kind {
        BlockKind::Thought => {
            let event = with(json!({ "content_index": 0, "text": text }));
            vec![("response.reasoning_text.done", event)]
        }
        BlockKind::Text => {
            let said = with(json!({ "content_index": 0, "text": text, "logprobs": [] }));
            let part = with(json!({ "content_index": 0, "part": text_part(text) }));
            vec![("response.output_text.done", said), ("response.content_part.done", part)]
        }
        BlockKind::Call(name) => {
            let event = with(json!({ "name": name, "arguments": text }));
            vec![("response.function_call_arguments.done", event)]
        }
    }
}
