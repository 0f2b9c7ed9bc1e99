//! Checks of a command line that clap cannot express.

/// Validation of a command's options, run once before the command starts.
pub(crate) trait Checked {
    /// # Errors
    /// If options exclude each other or a required one is missing. The error is a sentence.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}
