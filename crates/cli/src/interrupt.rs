//! Ctrl-C: the first press stops the text, a second one the program.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use forerun_lab::Cancellation;
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// What shells report of a program that Ctrl-C ended.
pub(crate) const EXIT_CODE: u8 = 130;

/// Whether Ctrl-C was pressed, or the time a command may take is over. Engines look at the same flag
/// inside a pass.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    cancellation: Cancellation,
    handlers: Vec<SigId>,
}

impl Interrupt {
    /// Takes Ctrl-C over from the system.
    ///
    /// # Errors
    /// Where the system does not let it.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let cancellation = Cancellation::default();
        let pressed = cancellation.flag();
        let watch = || -> std::io::Result<Vec<SigId>> {
            // In this order: the first press must not find the flag it sets.
            let exit = EXIT_CODE.into();
            Ok(vec![
                flag::register_conditional_shutdown(SIGINT, exit, Arc::clone(&pressed))?,
                flag::register(SIGINT, Arc::clone(&pressed))?,
            ])
        };
        let handlers = watch().context("cannot listen for Ctrl-C")?;
        Ok(Self { cancellation, handlers })
    }

    /// The same for a run of the lab.
    pub(crate) fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    /// Whether it was Ctrl-C, and not the clock.
    pub(crate) fn is_users(&self) -> bool {
        self.is_pressed() && !self.cancellation.is_expired()
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

    /// Whether it was pressed, by Ctrl-C or by the clock, since it was last forgotten.
    pub(crate) fn is_pressed(&self) -> bool {
        self.cancellation.is_cancelled()
    }

    /// Forgets it: the stop it asked for is over.
    pub(crate) fn forget(&self) {
        self.flag().store(false, Ordering::SeqCst);
    }

    /// What a command came to, a failure after Ctrl-C being no failure: it was asked for.
    pub(crate) fn or_stopped<E: Into<anyhow::Error>>(
        &self,
        result: Result<ExitCode, E>,
    ) -> anyhow::Result<ExitCode> {
        match result {
            Err(_) if self.is_users() => Ok(ExitCode::from(EXIT_CODE)),
            result => result.map_err(Into::into),
        }
    }

    /// The flag, for engines.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.cancellation.flag()
    }
}
