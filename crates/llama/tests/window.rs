//! A model that attends to a window can be cut back to before it.

mod common;

use common::{TEXT, model_path, options, rows, step, tokens};
use forerun_decode::{Keep, Rows, Slot, Step, Token};
use forerun_llama::{LlamaEngine, Model, ModelOptions};

#[test]
fn a_window_can_be_cut_back() {
    let path = model_path("gemma-3-270m.Q4_K_M.gguf");
    let model = Model::load(ModelOptions::new(path)).unwrap();
    let text = tokens(&model, TEXT);
    let long: Vec<Token> = text.iter().copied().cycle().take(900).collect();
    // Alone, with a neighbour in cells of its own, and with one that shares cells.
    for (slots, paths) in [(1, 1), (2, 1), (2, 2)] {
        let mut options = options(slots, paths);
        options.context_len = Some(common::count(1024));
        let mut engine = LlamaEngine::new(&model, &options).unwrap();
        let block = &long[300..310];
        rows(&mut engine, step(Keep::All(0), &long[..60], &[], Rows::None));
        let before = rows(&mut engine, step(Keep::All(60), block, &[], Rows::Trunk));
        rows(&mut engine, step(Keep::Trunk(60), &long[60..900], &[], Rows::None));
        for slot in 1..slots {
            let other = Step { slot: Slot(slot), ..step(Keep::All(0), &long, &[], Rows::None) };
            rows(&mut engine, other);
        }
        assert!(engine.is_consistent());
        let after = rows(&mut engine, step(Keep::Trunk(60), block, &[], Rows::Trunk));
        assert!(engine.is_consistent());
        assert!(before == after, "{slots} slots of {paths} paths");
    }
}
