//! The real location of a path, symbolic links resolved, whether or not it exists.

use std::path::{Component, Path, PathBuf};

/// Resolves a path that may not exist yet: canonicalizes the nearest existing ancestor and appends
/// the remaining components. A `..` among them removes the component before it.
pub(crate) fn real_or_nearest(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for parent in absolute.ancestors() {
        if let (Ok(mut real), Ok(rest)) = (parent.canonicalize(), absolute.strip_prefix(parent)) {
            for part in rest.components() {
                match part {
                    Component::ParentDir => drop(real.pop()),
                    part => real.push(part),
                }
            }
            return real;
        }
    }
    absolute
}
