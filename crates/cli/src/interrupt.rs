//! Ctrl-C: the first press stops the text, a second one the program.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// What shells report of a program that Ctrl-C ended.
pub(crate) const EXIT_CODE: u8 = 130;

/// Whether Ctrl-C was pressed. Engines look at the same flag inside a pass.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    pressed: Arc<AtomicBool>,
    handlers: Vec<SigId>,
}

impl Interrupt {
    /// Takes Ctrl-C over from the system.
    ///
    /// # Errors
    /// Where the system does not let it.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let pressed = Arc::new(AtomicBool::new(false));
        let watch = || -> std::io::Result<Vec<SigId>> {
            // In this order: the first press must not find the flag it sets.
            let exit = EXIT_CODE.into();
            Ok(vec![
                flag::register_conditional_shutdown(SIGINT, exit, Arc::clone(&pressed))?,
                flag::register(SIGINT, Arc::clone(&pressed))?,
            ])
        };
        let handlers = watch().context("cannot listen for Ctrl-C")?;
        Ok(Self { pressed, handlers })
    }

    /// Takes SIGTERM for Ctrl-C too, until it is given back: the first process of a container does not
    /// hear it otherwise. Gives whether it came.
    ///
    /// # Errors
    /// Where the system does not let it.
    pub(crate) fn or_terminated(&mut self) -> anyhow::Result<Arc<AtomicBool>> {
        let told = Arc::new(AtomicBool::new(false));
        for heard in [self.flag(), Arc::clone(&told)] {
            let handler = flag::register(SIGTERM, heard).context("cannot listen for SIGTERM")?;
            self.handlers.push(handler);
        }
        Ok(told)
    }

    /// Gives Ctrl-C back.
    pub(crate) fn release(&self) {
        for handler in &self.handlers {
            signal_hook::low_level::unregister(*handler);
        }
    }

    /// Whether it was pressed since it was last forgotten.
    pub(crate) fn is_pressed(&self) -> bool {
        self.pressed.load(Ordering::SeqCst)
    }

    /// Forgets it: the stop it asked for is over.
    pub(crate) fn forget(&self) {
        self.pressed.store(false, Ordering::SeqCst);
    }

    /// What a command came to, a failure after Ctrl-C being no failure: it was asked for.
    pub(crate) fn or_stopped(&self, result: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
        match result {
            Err(_) if self.is_pressed() => Ok(ExitCode::from(EXIT_CODE)),
            result => result,
        }
    }

    /// The flag, for engines.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.pressed)
    }
}
