//! The sources from which a host or a tenant gets its tools.

use std::{path::PathBuf, sync::Arc};

use crate::ports::Tool;

/// Tools, and their workspace folder; `None` for tools that need none.
pub type ToolsInFolder = (Vec<Arc<dyn Tool>>, Option<Arc<PathBuf>>);

/// A source of tools: a list, or a configuration step that may have failed.
pub trait ToolSource {
    /// Returns the tools and their workspace folder.
    ///
    /// # Errors
    /// One line of text for the person who configures the host.
    fn tools(self) -> Result<ToolsInFolder, String>;
}

impl ToolSource for Vec<Arc<dyn Tool>> {
    fn tools(self) -> Result<ToolsInFolder, String> {
        Ok((self, None))
    }
}

impl<const N: usize> ToolSource for [Arc<dyn Tool>; N] {
    fn tools(self) -> Result<ToolsInFolder, String> {
        Ok((self.into(), None))
    }
}
