//! Where a host or a tenant gets its tools from.

use std::{path::PathBuf, sync::Arc};

use crate::ports::Tool;

/// Tools, and the folder that they work in.
pub type ToolsInFolder = (Vec<Arc<dyn Tool>>, Option<Arc<PathBuf>>);

/// Something that brings tools: a list, or a set-up that may have failed.
pub trait ToolSource {
    /// The tools, the folder they work in, or why there are none.
    ///
    /// # Errors
    /// A line for the person who configures the host.
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
