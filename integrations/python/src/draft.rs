//! Drafts of any shape.

use forerun_verify as verify;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use verify::{Node, RowId, Scheme, Token};

use crate::errors;
use crate::rows::Row;

/// A finished draft: a tree of tokens, and how each came about.
#[pyclass(frozen, module = "forerun")]
pub(crate) struct Draft(pub(crate) verify::Draft);

/// A draft while it grows.
#[pyclass(module = "forerun")]
pub(crate) struct DraftBuilder {
    tree: Option<verify::DraftBuilder>,
    nodes: Vec<Node>,
    rows: Vec<RowId>,
}

fn scheme(name: &str) -> PyResult<Scheme> {
    match name {
        "paths" => Ok(Scheme::Paths),
        "independent" => Ok(Scheme::Independent),
        "without-replacement" => Ok(Scheme::WithoutReplacement),
        "beam" => Ok(Scheme::Beam),
        _ => Err(PyValueError::new_err(format!(
            "scheme {name:?}; expected paths, independent, without-replacement or beam"
        ))),
    }
}

#[pymethods]
impl DraftBuilder {
    #[new]
    fn new(scheme_name: &str, vocab_len: usize) -> PyResult<Self> {
        let tree = verify::Draft::start(scheme(scheme_name)?, vocab_len);
        Ok(Self { tree: Some(tree), nodes: vec![Node::ROOT], rows: Vec::new() })
    }

    /// Hands over a row to draw from and returns its number.
    fn row(&mut self, row: &Row) -> PyResult<usize> {
        let id = self.tree()?.row(row.0.clone()).map_err(errors::draft)?;
        self.rows.push(id);
        Ok(self.rows.len() - 1)
    }

    /// Adds a token that was drawn from a row and returns its node.
    fn sampled(&mut self, parent: usize, row: usize, token: u32) -> PyResult<usize> {
        let row = *self.rows.get(row).ok_or_else(|| missing("row", row))?;
        let parent = self.node(parent)?;
        let node = self.tree()?.sampled(parent, row, Token(token)).map_err(errors::draft)?;
        Ok(self.known(node))
    }

    /// Adds a token that was chosen without drawing and returns its node.
    fn fixed(&mut self, parent: usize, token: u32) -> PyResult<usize> {
        let parent = self.node(parent)?;
        let node = self.tree()?.fixed(parent, Token(token)).map_err(errors::draft)?;
        Ok(self.known(node))
    }

    /// Ends the draft.
    fn finish(&mut self) -> PyResult<Draft> {
        let tree = self.tree.take().ok_or_else(ended)?;
        tree.finish().map(Draft).map_err(errors::draft)
    }
}

fn ended() -> PyErr {
    PyValueError::new_err("the draft has ended; start another")
}

fn missing(what: &str, index: usize) -> PyErr {
    PyIndexError::new_err(format!("{what} {index} is not in this draft"))
}

impl DraftBuilder {
    fn tree(&mut self) -> PyResult<&mut verify::DraftBuilder> {
        self.tree.as_mut().ok_or_else(ended)
    }

    fn node(&self, index: usize) -> PyResult<Node> {
        self.nodes.get(index).copied().ok_or_else(|| missing("node", index))
    }

    fn known(&mut self, node: Node) -> usize {
        if node.index() == self.nodes.len() {
            self.nodes.push(node);
        }
        node.index()
    }
}

#[pymethods]
impl Draft {
    /// How many tokens the vocabulary has.
    #[getter]
    fn vocab_len(&self) -> usize {
        self.0.vocab_len()
    }

    /// How many tokens the target must score.
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// The drafted nodes: number, token and parent, parents first.
    fn nodes(&self) -> Vec<(usize, u32, usize)> {
        let nodes = self.0.nodes();
        nodes.map(|(node, token, parent)| (node.index(), token.0, parent.index())).collect()
    }

    /// The tokens that lead to a node.
    fn path_to(&self, node: usize) -> PyResult<Vec<u32>> {
        if node == 0 {
            return Ok(Vec::new());
        }
        let found = self.0.nodes().nth(node - 1).ok_or_else(|| missing("node", node))?;
        Ok(self.0.path_to(found.0).into_iter().map(|token| token.0).collect())
    }
}
