//! Checks of a command line that clap cannot make by itself.

/// What a command takes: checked once, before the command starts.
pub(crate) trait Checked {
    /// # Errors
    /// With a sentence, when options do not go together or one is missing.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}
