//! JSON that comes in pieces: where a value ends, and which field of an object is being written.

/// Finds the end of an object, a list or a string.
#[derive(Debug, Clone, Default)]
pub(super) struct ValueEnd {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl ValueEnd {
    /// Takes a character. Returns whether the value ends with it.
    pub(super) fn push(&mut self, char: char) -> bool {
        match char {
            _ if self.escaped => self.escaped = false,
            '\\' if self.in_string => self.escaped = true,
            '"' => self.in_string = !self.in_string,
            '{' | '[' if !self.in_string => self.depth += 1,
            '}' | ']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.depth == 0 && !self.in_string && !self.escaped && matches!(char, '"' | '}' | ']')
    }
}

/// What a character adds to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing that is part of a field.
    Nothing,
    /// The name of the next field is known.
    Key(String),
    /// A character of the field's value.
    Value(char),
    /// The field's value has ended, with this character if there is one.
    ValueEnd(Option<char>),
    /// The object has ended.
    End,
    /// This is no object.
    Invalid,
}

#[derive(Debug, Clone)]
enum Place {
    Before,
    BeforeKey,
    Key(String, ValueEnd),
    AfterKey,
    BeforeValue,
    Value(ValueEnd),
    /// A number or a word.
    Word,
    Over,
}

/// Reads the fields of an object.
#[derive(Debug, Clone)]
pub(super) struct ObjectReader(Place);

impl ObjectReader {
    pub(super) fn new() -> Self {
        Self(Place::Before)
    }

    /// Takes a character. The second step is there if a value without an end of its own ends with
    /// what follows it.
    pub(super) fn push(&mut self, char: char) -> [Step; 2] {
        let space = char.is_ascii_whitespace();
        let (next, step) = match (&mut self.0, char) {
            (Place::Word, ',' | '}') => {
                let over = char == '}';
                self.0 = if over { Place::Over } else { Place::BeforeKey };
                return [Step::ValueEnd(None), if over { Step::End } else { Step::Nothing }];
            }
            (Place::Word, _) if space => return [Step::Nothing, Step::Nothing],
            (Place::Word, _) => return [Step::Value(char), Step::Nothing],
            (Place::Key(raw, end), _) => {
                raw.push(char);
                if !end.push(char) {
                    return [Step::Nothing, Step::Nothing];
                }
                match serde_json::from_str(raw) {
                    Ok(key) => (Place::AfterKey, Step::Key(key)),
                    Err(_) => (Place::Over, Step::Invalid),
                }
            }
            (Place::Value(end), _) => match end.push(char) {
                true => (Place::BeforeKey, Step::ValueEnd(Some(char))),
                false => return [Step::Value(char), Step::Nothing],
            },
            _ if space => return [Step::Nothing, Step::Nothing],
            (Place::Before, '{') => (Place::BeforeKey, Step::Nothing),
            (Place::BeforeKey, ',') => (Place::BeforeKey, Step::Nothing),
            (Place::BeforeKey, '}') => (Place::Over, Step::End),
            (Place::BeforeKey, '"') => {
                let mut end = ValueEnd::default();
                end.push(char);
                (Place::Key(char.to_string(), end), Step::Nothing)
            }
            (Place::AfterKey, ':') => (Place::BeforeValue, Step::Nothing),
            (Place::BeforeValue, '{' | '[' | '"') => {
                let mut end = ValueEnd::default();
                end.push(char);
                // A quote opens a string: it ends none.
                (Place::Value(end), Step::Value(char))
            }
            (Place::BeforeValue, _) => (Place::Word, Step::Value(char)),
            _ => (Place::Over, Step::Invalid),
        };
        self.0 = next;
        [step, Step::Nothing]
    }
}
