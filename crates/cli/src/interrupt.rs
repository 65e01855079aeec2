//! Ctrl-C: the first press stops the text, a second one the program.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use signal_hook::SigId;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// What shells report of a program that Ctrl-C ended.
pub(crate) const EXIT_CODE: u8 = 130;

/// Whether Ctrl-C was pressed, or the time a command may take is over. Engines look at the same flag
/// inside a pass.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt {
    pressed: Arc<AtomicBool>,
    /// Whether it was the clock.
    expired: Arc<AtomicBool>,
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
        Ok(Self { pressed, expired: Arc::new(AtomicBool::new(false)), handlers })
    }

    /// Has the clock press it when so much time is over, whatever is under way then: a pass, the
    /// loading of a file.
    pub(crate) fn expire_after(&self, time: Duration) {
        let (pressed, expired) = (self.flag(), Arc::clone(&self.expired));
        std::thread::spawn(move || {
            std::thread::sleep(time);
            // What Ctrl-C has ended, the clock does not end.
            if !pressed.load(Ordering::SeqCst) {
                expired.store(true, Ordering::SeqCst);
                pressed.store(true, Ordering::SeqCst);
            }
        });
    }

    /// Whether it was the clock, and not Ctrl-C.
    pub(crate) fn is_expired(&self) -> bool {
        self.expired.load(Ordering::SeqCst)
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
        self.pressed.load(Ordering::SeqCst)
    }

    /// Forgets it: the stop it asked for is over.
    pub(crate) fn forget(&self) {
        self.pressed.store(false, Ordering::SeqCst);
    }

    /// What a command came to, a failure after Ctrl-C being no failure: it was asked for.
    pub(crate) fn or_stopped(&self, result: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
        match result {
            Err(_) if self.is_pressed() && !self.is_expired() => Ok(ExitCode::from(EXIT_CODE)),
            result => result,
        }
    }

    /// The flag, for engines.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.pressed)
    }
}
