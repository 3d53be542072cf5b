//! Paths of the system that commands can read.

/// Paths of the system that a command can read; missing ones are skipped. `/etc` is not listed as a
/// whole, since it may hold keys.
pub(super) const SYSTEM: &[&str] = &[
    "/usr",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/protocols",
    "/etc/services",
];

/// Links into `/usr` on a merged system, separate folders elsewhere.
pub(super) const PROGRAMS: &[&str] = &["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
