//! Session keyrings for processes that the host starts: each process gets a new, empty one. So
//! neither a command nor the kernel on its behalf (a network file system, Kerberos) finds a key of
//! the host's session or leaves one for the next command.
//!
//! Credentials belong to a thread, and a child inherits those of the thread that starts it. So the
//! spawner's thread joins a new keyring before each start. A keyring is freed with its last
//! process.

use std::io::Error;

/// Moves this thread, and what it starts from now on, to a new session keyring without a name.
/// Returns the keyring's number. Only for a thread that starts processes, since the previous
/// keyring cannot be joined again.
///
/// # Errors
/// The kernel's error: it has no keyrings, a container refuses the call, or the user's quota of
/// keys is used up. The thread then keeps its keyring.
pub(super) fn join_new_session() -> Result<i32, Error> {
    keyutils_raw::keyctl_join_session_keyring(None)
        .map(i32::from)
        .map_err(Error::from)
}

/// Checks whether [`join_new_session`] works here, on a temporary thread.
pub(in crate::sandbox) fn can_join() -> Result<(), Error> {
    let tried = std::thread::Builder::new()
        .name("callboard-keys".to_owned())
        .spawn(join_new_session)?
        .join();
    tried
        .unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()))
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_session_that_is_joined_has_a_new_and_empty_keyring() {
        let joined =
            || Ok::<_, Error>((join_new_session()?, std::fs::read_to_string("/proc/keys")?));
        let (first, second) =
            match std::thread::spawn(move || Ok::<_, Error>((joined()?, joined()?)))
                .join()
                .unwrap()
            {
                Ok(joined) => joined,
                Err(error) => {
                    return eprintln!(
                        "SKIPPED: each_session_that_is_joined_has_a_new_and_empty_keyring: {error}"
                    );
                }
            };

        assert_ne!(first.0, second.0);
        for (number, keys) in [first, second] {
            let row = keys
                .lines()
                .find(|row| row.starts_with(&format!("{number:08x} ")));
            assert!(
                row.is_some_and(|row| row.ends_with("_ses: empty")),
                "{row:?}"
            );
        }
    }
}
