//! Reads the names in a git index, as git itself reads them, in order to find those that no index of
//! git's own making has. Git checks a name when it adds it to an index, and not when it reads an
//! index: `git restore .` writes to the paths in it, `git commit -a` reads from them. Any deviation
//! from the format counts as a bad name, since git may read the rest differently.

use std::io::{self, BufRead, Read};

/// Length of the header of a file, and of the head of an extension.
const HEADER: usize = 12;
const EXTENSION: usize = 8;

/// Bytes of an entry before the object's id: times, numbers, mode and size.
const STATUS: usize = 40;

/// Bit of an entry's flags that announces more flags, and the bits of the name's length. The largest
/// length means that the name ends at its NUL.
const EXTENDED: u16 = 0x4000;
const NAME_LENGTH: u16 = 0x0fff;

/// Bytes of an index that are read: some five million names.
const INDEX_BYTES_MAX: u64 = 512 << 20;

/// Bytes of a path.
const PATH_MAX: usize = 4096;

/// What an index names besides files of the working tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Index {
    /// Ids, in hexadecimal digits, of the files `sharedindex.ID` that hold the rest of the names.
    pub(crate) shared: Vec<String>,
}

/// Whether git's own checks accept a path in a repository: relative, without empty names, `.`, `..`
/// and `.git`. The end of a folder's name may be a slash.
pub(crate) fn is_path_of_a_tree(path: &[u8]) -> bool {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    path.split(|byte| *byte == b'/').all(|name| {
        !matches!(name, b"" | b"." | b"..")
            && !name.eq_ignore_ascii_case(b".git")
            && !name.eq_ignore_ascii_case(b"git~1")
    })
}

/// Reads an index of `length` bytes in a repository whose ids have `id` bytes. `None` if a name in it
/// is bad.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn read(
    open: impl Fn() -> io::Result<Box<dyn Read>>,
    length: u64,
    id: usize,
) -> io::Result<Option<Index>> {
    if length > INDEX_BYTES_MAX {
        return Ok(None);
    }
    let read_once = |blocks: &[(u64, u64)]| -> io::Result<Option<Tail>> {
        let mut input = Input {
            from: io::BufReader::with_capacity(1 << 16, open()?),
            at: 0,
        };
        match input.index(length, id, blocks) {
            // The file ends within something.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            other => other,
        }
    };
    let Some(first) = read_once(&[])? else {
        return Ok(None);
    };
    // A large index is read in blocks, whose places the file names: these must be the places at
    // which the names were found.
    let agrees = first.blocks.is_empty() || read_once(&first.blocks)?.is_some();
    Ok(agrees.then_some(Index {
        shared: first.shared,
    }))
}

/// What follows the entries.
struct Tail {
    shared: Vec<String>,
    /// Places of the blocks of entries in the file, and their numbers of entries.
    blocks: Vec<(u64, u64)>,
}

struct Input<R> {
    from: R,
    at: u64,
}

impl<R: BufRead> Input<R> {
    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn number(&mut self) -> io::Result<u64> {
        Ok(u64::from(u32::from_be_bytes(self.bytes()?)))
    }

    fn many(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.from.read_exact(&mut bytes)?;
        self.at += count as u64;
        Ok(bytes)
    }

    fn skip(&mut self, count: u64) -> io::Result<()> {
        let skipped = io::copy(&mut self.from.by_ref().take(count), &mut io::sink())?;
        self.at += skipped;
        if skipped == count {
            Ok(())
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    fn index(&mut self, length: u64, id: usize, blocks: &[(u64, u64)]) -> io::Result<Option<Tail>> {
        let head: [u8; HEADER] = self.bytes()?;
        let (Some(b"DIRC"), Some([0, 0, 0, version @ 2..=4]), Some(count)) =
            (head.get(..4), head.get(4..8), head.get(8..))
        else {
            return Ok(None);
        };
        let count = count
            .iter()
            .fold(0, |count, byte| count << 8 | u64::from(*byte));
        let mut name = Vec::new();
        let mut block = blocks.iter();
        let mut left = 0;
        for _ in 0..count {
            let begins = !blocks.is_empty() && left == 0;
            if begins {
                match block.next() {
                    Some((place, entries)) if *place == self.at && *entries > 0 => left = *entries,
                    _ => return Ok(None),
                }
            }
            left = left.saturating_sub(1);
            if !self.entry(*version == 4, id, begins, &mut name)? {
                return Ok(None);
            }
        }
        if left > 0 || block.next().is_some() {
            return Ok(None);
        }
        self.tail(length, id)
    }

    /// Reads one entry, whose name replaces that of the entry before it. Returns whether it is good.
    fn entry(
        &mut self,
        shortened: bool,
        id: usize,
        begins: bool,
        name: &mut Vec<u8>,
    ) -> io::Result<bool> {
        let start = self.at;
        self.skip((STATUS + id) as u64)?;
        let flags = u16::from_be_bytes(self.bytes()?);
        if flags & EXTENDED != 0 {
            self.bytes::<2>()?;
        }
        let length = usize::from(flags & NAME_LENGTH);
        let kept = if shortened {
            let Some(kept) = self.varint()?.and_then(|cut| name.len().checked_sub(cut)) else {
                return Ok(false);
            };
            kept
        } else {
            0
        };
        // A block is read without the name before it.
        if begins && kept > 0 {
            return Ok(false);
        }
        name.truncate(kept);
        let most = PATH_MAX.saturating_sub(kept) as u64;
        let read = self.from.by_ref().take(most).read_until(0, name)?;
        self.at += read as u64;
        if name.pop() != Some(0) || read == 0 {
            return Ok(false);
        }
        if length < usize::from(NAME_LENGTH) && length != name.len()
            || length == usize::from(NAME_LENGTH) && name.len() < length
        {
            return Ok(false);
        }
        if !shortened {
            // One to eight NUL bytes, up to a multiple of eight.
            let size = self.at - start - 1;
            let fill = 7 - size % 8;
            let fill = self.many(usize::try_from(fill).unwrap_or(0))?;
            if fill.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
        // In an index whose other half is in another file, an entry that only replaces one has no
        // name.
        Ok(name.is_empty() || is_path_of_a_tree(name))
    }

    /// A number of git's variable length.
    fn varint(&mut self) -> io::Result<Option<usize>> {
        let [mut byte] = self.bytes()?;
        let mut value = usize::from(byte & 0x7f);
        while byte & 0x80 != 0 {
            if value > PATH_MAX {
                return Ok(None);
            }
            [byte] = self.bytes()?;
            value = (value + 1) << 7 | usize::from(byte & 0x7f);
        }
        Ok(Some(value))
    }

    /// Reads the extensions, up to the checksum.
    fn tail(&mut self, length: u64, id: usize) -> io::Result<Option<Tail>> {
        let entries_end = self.at;
        let Some(end) = length.checked_sub(id as u64) else {
            return Ok(None);
        };
        let mut tail = Tail {
            shared: Vec::new(),
            blocks: Vec::new(),
        };
        while self.at < end {
            let left = end - self.at;
            if left < EXTENSION as u64 {
                return Ok(None);
            }
            let kind: [u8; 4] = self.bytes()?;
            let size = self.number()?;
            let after = self.at + size;
            if after > end {
                return Ok(None);
            }
            match &kind {
                b"link" if size >= id as u64 => {
                    let shared = self.many(id)?;
                    if shared.iter().any(|byte| *byte != 0) {
                        tail.shared
                            .push(shared.iter().map(|byte| format!("{byte:02x}")).collect());
                    }
                }
                b"link" => return Ok(None),
                // Where the extensions begin, for a reader that has not read the entries yet.
                b"EOIE" if size < 4 || self.number()? != entries_end => return Ok(None),
                b"IEOT" => {
                    if !tail.blocks.is_empty() || size < 4 || !(size - 4).is_multiple_of(8) {
                        return Ok(None);
                    }
                    self.number()?;
                    for _ in 0..(size - 4) / 8 {
                        tail.blocks.push((self.number()?, self.number()?));
                    }
                }
                _ => {}
            }
            self.skip(after.saturating_sub(self.at))?;
        }
        Ok((self.at == end).then_some(tail))
    }
}

/// Whether the list of conflicts that git remembers (`MERGE_RR`) has only paths of the working tree.
/// Returns the paths; `None` if there are others.
pub(crate) fn conflicts(content: &[u8]) -> Option<Vec<&[u8]>> {
    let entries = content.strip_suffix(b"\0").unwrap_or(content);
    if entries.is_empty() {
        return Some(Vec::new());
    }
    entries
        .split(|byte| *byte == 0)
        .map(|entry| {
            let tab = entry.iter().position(|byte| *byte == b'\t')?;
            entry
                .get(tab + 1..)
                .filter(|path| is_path_of_a_tree(path) && !path.ends_with(b"/"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An index with these names.
    fn index(version: u8, names: &[&str], tail: &[u8]) -> Vec<u8> {
        let mut index = b"DIRC\0\0\0".to_vec();
        index.push(version);
        index.extend(u32::try_from(names.len()).unwrap().to_be_bytes());
        let mut before = "";
        for name in names {
            let start = index.len();
            index.extend([0; STATUS + 20]);
            let length = name.len().min(usize::from(NAME_LENGTH));
            index.extend(u16::try_from(length).unwrap().to_be_bytes());
            if version == 4 {
                let same = before
                    .bytes()
                    .zip(name.bytes())
                    .take_while(|(a, b)| a == b)
                    .count();
                let cut = before.len() - same;
                if cut > 127 {
                    index.push(u8::try_from(0x80 | ((cut >> 7) - 1)).unwrap());
                }
                index.push(u8::try_from(cut & 0x7f).unwrap());
                index.extend(&name.as_bytes()[same..]);
                index.push(0);
                before = name;
            } else {
                index.extend(name.as_bytes());
                let length = index.len() - start;
                index.extend(vec![0; 8 - length % 8]);
            }
        }
        index.extend(tail);
        index.extend([7; 20]);
        index
    }

    fn shared(index: &[u8]) -> Option<Vec<String>> {
        let index = index.to_vec();
        let length = index.len() as u64;
        let open = move || Ok(Box::new(io::Cursor::new(index.clone())) as Box<dyn Read>);
        read(open, length, 20).unwrap().map(|index| index.shared)
    }

    fn extension(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
        let size = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&kind[..], &size, content].concat()
    }

    #[test]
    fn names_of_files_in_a_working_tree_are_good_and_no_others() {
        let long = "d/".repeat(1500) + "x";
        let longer = format!("{}y", "d/".repeat(1400));
        let good = [
            &["a", "a.b", "a/b/.gitignore", "git", "..a", "é"][..],
            &[],
            &["dir/"],
            &[&long, &longer],
            &["x", ""],
        ];
        let bad = [
            "/etc/x",
            "../x",
            "a/../../x",
            "a/..",
            ".git/hooks/x",
            "a/.GIT/x",
            ".git",
            "git~1/x",
            "a//x",
            "./a",
        ];
        for version in 2..=4 {
            for names in good {
                assert_eq!(
                    shared(&index(version, names, b"")),
                    Some(Vec::new()),
                    "{names:?}"
                );
            }
            for name in bad {
                for names in [
                    &[name][..],
                    &["a", name],
                    &[name, "z"],
                    &[".git/hookt", name],
                ] {
                    assert_eq!(
                        shared(&index(version, names, b"")),
                        None,
                        "{version} {names:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_git_could_read_differently_is_bad() {
        let whole = index(2, &["abc", "b"], b"");
        for end in 0..whole.len() {
            assert_eq!(shared(&whole[..end]), None, "{end}");
        }
        let mut changed = whole.clone();
        // The padding of the first entry, and its length.
        changed[HEADER + STATUS + 20 + 2 + 4] = b'x'; // its name has three bytes and a NUL
        assert_eq!(shared(&changed), None);
        for length in [0, 2, 0xff] {
            let mut changed = whole.clone();
            changed[HEADER + STATUS + 20 + 1] = length;
            assert_eq!(shared(&changed), None, "{length}");
        }
        assert_eq!(shared(&index(5, &["a"], b"")), None);
        assert_eq!(shared(&index(1, &["a"], b"")), None);
        assert_eq!(shared(&index(2, &["a"], b"TREE\0\0\0\x09x")), None);
        assert_eq!(
            shared(&index(2, &["a"], &extension(b"TREE", b"xyz"))),
            Some(Vec::new())
        );
    }

    #[test]
    fn what_an_index_says_about_its_own_places_must_be_true() {
        for version in [2, 4] {
            let names = ["a", "ab", "b"];
            let end = index(version, &names, b"").len() as u32 - 20;
            let second = index(version, &names[..2], b"").len() as u32 - 20;
            let start = HEADER as u32;
            let ends = |at: u32| extension(b"EOIE", &[&at.to_be_bytes()[..], &[0; 20]].concat());
            let blocks = |blocks: &[(u32, u32)]| {
                let places = blocks
                    .iter()
                    .flat_map(|(at, count)| [at.to_be_bytes(), count.to_be_bytes()].concat());
                extension(
                    b"IEOT",
                    &[0, 0, 0, 1].into_iter().chain(places).collect::<Vec<_>>(),
                )
            };
            let good = |tail: &[u8]| shared(&index(version, &names, tail)).is_some();

            assert!(good(&ends(end)) && !good(&ends(end - 1)));
            assert!(good(&blocks(&[(start, 2), (second, 1)])), "{version}");
            assert!(good(&blocks(&[(start, 3)])));
            let wrong: [&[(u32, u32)]; 5] = [
                &[(start, 2)],
                &[(start, 2), (second + 1, 1)],
                &[(start, 2), (second, 2)],
                &[(start, 2), (second, 1), (end, 1)],
                &[(end, 3)],
            ];
            for wrong in wrong {
                assert!(!good(&blocks(wrong)), "{version} {wrong:?}");
            }
        }
        // The second entry repeats the beginning of the first, which a block that begins with it
        // does not have.
        let names = ["a", "ab"];
        let second = index(4, &names[..1], b"").len() as u32 - 20;
        let places = [0, 0, 0, 1, 0, 0, 0, 12, 0, 0, 0, 1].into_iter();
        let places: Vec<u8> = places
            .chain(second.to_be_bytes())
            .chain([0, 0, 0, 1])
            .collect();
        assert_eq!(
            shared(&index(4, &names, &extension(b"IEOT", &places))),
            None
        );
    }

    #[test]
    fn the_other_half_of_an_index_is_known() {
        let link = extension(b"link", &[0xab; 20]);
        assert_eq!(
            shared(&index(2, &["", "a"], &link)),
            Some(vec!["ab".repeat(20)])
        );
        assert_eq!(
            shared(&index(2, &[], &extension(b"link", &[0; 20]))),
            Some(Vec::new())
        );
        assert_eq!(shared(&index(2, &[], &extension(b"link", &[1; 4]))), None);
    }

    #[test]
    fn conflicts_have_paths_of_the_working_tree() {
        assert_eq!(conflicts(b""), Some(Vec::new()));
        assert_eq!(
            conflicts(b"01\ta b\x0012.1\tc/d\0"),
            Some(vec![&b"a b"[..], b"c/d"])
        );
        for bad in [
            &b"01\t../x\0"[..],
            b"01\t/x\0",
            b"01\t.git/config\0",
            b"01 x\0",
            b"01\ta\0\0",
            b"01\t\0",
        ] {
            assert_eq!(conflicts(bad), None, "{bad:?}");
        }
    }
}
