//! The image in the clipboard, by the programs that desktops have for it.

use std::{
    ffi::OsStr,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use callboard_actors::limits::PDF_BYTES_MAX;

use super::{editor::found, failure::Failure};

/// Time for the program that owns the clipboard to hand it over.
const WAIT: Duration = Duration::from_secs(5);

/// The variable of a desktop, and the program with its arguments that prints the image.
const PROGRAMS: [(&str, &str, &[&str]); 2] = [
    (
        "WAYLAND_DISPLAY",
        "wl-paste",
        &["--no-newline", "--type", "image/png"],
    ),
    (
        "DISPLAY",
        "xclip",
        &["-selection", "clipboard", "-target", "image/png", "-out"],
    ),
];

/// What those programs need of the environment; they get nothing else.
const VARIABLES: [&str; 6] = [
    "WAYLAND_DISPLAY",
    "DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
    "HOME",
    "PATH",
];

/// Another way to attach an image.
const ELSE: &str = "paste the path of an image file, or use /attach FILE";

/// Reads the image. Blocks up to five seconds.
pub(super) fn image(workspace: &Path) -> Result<Vec<u8>, Failure> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let (program, arguments) = chosen(is_set, &path, workspace)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(
            VARIABLES
                .iter()
                .filter_map(|name| Some((*name, std::env::var_os(name)?))),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let cannot = |why: &str| Failure::work(format!("the clipboard cannot be read: {why}"));
    let mut child = command
        .spawn()
        .map_err(|error| cannot(&error.kind().to_string()))?;
    let read = output(&mut child);
    let _ = child.kill(); // It may have ended.
    let _ = child.wait();
    match read {
        None => Err(cannot("it took too long").hint(ELSE)),
        Some(bytes) if bytes.is_empty() => {
            Err(Failure::work("there is no image in the clipboard").hint(ELSE))
        }
        Some(bytes) => Ok(bytes),
    }
}

/// What the program prints, with one byte more than an attachment may have. `None` if it takes too
/// long.
fn output(child: &mut Child) -> Option<Vec<u8>> {
    let stdout = child.stdout.take()?;
    let (sender, read) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stdout
            .take(PDF_BYTES_MAX as u64 + 1)
            .read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    read.recv_timeout(WAIT).ok()
}

/// The program of the desktop, from an absolute folder that is not in the workspace.
fn chosen(
    is_set: impl Fn(&str) -> bool,
    path: &OsStr,
    workspace: &Path,
) -> Result<(PathBuf, &'static [&'static str]), Failure> {
    let mut here = PROGRAMS.iter().filter(|(name, ..)| is_set(name)).peekable();
    if here.peek().is_none() {
        return Err(Failure::work(
            "there is no clipboard: neither WAYLAND_DISPLAY nor DISPLAY is set",
        )
        .hint(ELSE));
    }
    here.find_map(|(_, name, arguments)| {
        let program = found(name, path, Some(workspace)).ok()?;
        Some((program, *arguments))
    })
    .ok_or_else(|| {
        Failure::work("no program that reads the clipboard is installed")
            .hint("install wl-clipboard for Wayland or xclip for X11, or use /attach FILE")
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_program_of_the_desktop_is_found_outside_of_the_workspace() {
        let home = tempfile::tempdir().unwrap();
        let (bin, work) = (home.path().join("bin"), home.path().join("work"));
        for (folder, name) in [(&bin, "xclip"), (&work, "wl-paste"), (&work, "xclip")] {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join(name), "").unwrap();
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(folder.join(name), mode).unwrap();
        }
        let path = std::env::join_paths([&work, &bin]).unwrap();

        let all = chosen(|_| true, &path, &work).unwrap();
        assert_eq!(all.0, bin.join("xclip"));
        let why = |failure: Failure| failure.text(crate::cli::terminal::Paint::plain());
        let wayland = chosen(|name| name == "WAYLAND_DISPLAY", &path, &work).unwrap_err();
        assert!(why(wayland).contains("wl-clipboard"));
        let none = chosen(|_| false, &path, &work).unwrap_err();
        assert!(why(none).contains("neither WAYLAND_DISPLAY nor DISPLAY"));
    }
}
