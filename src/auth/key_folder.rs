//! The key folder: `current.pem` (private, PKCS#8) and `retired-<kid>.pem` (public), written so that no crash and no
//! other process ever sees half a key or two first keys.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::keys::{KeyError, SigningKey};
use super::random;

const CURRENT: &str = "current.pem";
const RETIRED_PREFIX: &str = "retired-";
const RETIRED_SUFFIX: &str = ".pem";
const LOCK: &str = ".lock";

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
const OTHERS: u32 = 0o077;

/// The PEM texts of a key ring.
pub(super) struct KeyTexts {
    pub(super) current: String,
    pub(super) retired: Vec<String>,
}

/// Reads the folder; makes it and its first key if need be.
pub(super) fn load_or_create(folder: &Path) -> Result<KeyTexts, KeyError> {
    prepare(folder)?;
    current_or_create(folder)?;
    load(folder)
}

/// Reads the folder as it is, and makes nothing.
pub(super) fn load(folder: &Path) -> Result<KeyTexts, KeyError> {
    // The current key is read before the retired ones: a rotation in between then shows a key twice, never not at all.
    let current = read_private(&folder.join(CURRENT))?;
    Ok(KeyTexts { current, retired: read_retired(folder)? })
}

/// What tells that the folder has changed: when an entry came or went, and which file is the current key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    entries: (i64, i64),
    current: (u64, i64, i64),
}

/// How the folder is; `None` while it has no current key.
pub(super) fn stamp(folder: &Path) -> Option<Stamp> {
    let (entries, current) = (fs::metadata(folder).ok()?, fs::metadata(folder.join(CURRENT)).ok()?);
    Some(Stamp {
        entries: (entries.mtime(), entries.mtime_nsec()),
        current: (current.ino(), current.mtime(), current.mtime_nsec()),
    })
}

/// Retires the current key and puts a new one in its place.
pub(super) fn rotate(folder: &Path) -> Result<(), KeyError> {
    prepare(folder)?;
    // Two rotations at once would lose the key of the first, and what it signed meanwhile.
    let path = folder.join(LOCK);
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(FILE_MODE).open(&path);
    let lock = lock.map_err(at("open", &path))?;
    lock.lock().map_err(at("lock", &path))?;

    let old = SigningKey::parse(&current_or_create(folder)?)?;
    let name = format!("{RETIRED_PREFIX}{}{RETIRED_SUFFIX}", old.public().kid());
    // Retired first: a crash between the two leaves the key as both, which is harmless.
    replace(folder, &name, &old.public().to_pem())?;
    replace(folder, CURRENT, &SigningKey::generate()?)
}

/// Makes the folder, for its owner only; an existing one is closed to others.
fn prepare(folder: &Path) -> Result<(), KeyError> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(at("create", folder))?;
    let mode = fs::metadata(folder).map_err(at("read", folder))?.permissions().mode();
    if mode & OTHERS != 0 {
        fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE)).map_err(at("close", folder))?;
    }
    Ok(())
}

fn current_or_create(folder: &Path) -> Result<String, KeyError> {
    let path = folder.join(CURRENT);
    match read_private(&path) {
        Err(KeyError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
            create(folder, &path)?;
            // What is read back is the key of whoever was first.
            read_private(&path)
        }
        read => read,
    }
}

/// Puts a whole key in place, unless another process was first: a hard link never replaces a file.
fn create(folder: &Path, path: &Path) -> Result<(), KeyError> {
    let temporary = write_temporary(folder, &SigningKey::generate()?)?;
    let linked = fs::hard_link(&temporary, path);
    remove(&temporary)?;
    match linked {
        Err(source) if source.kind() != ErrorKind::AlreadyExists => Err(at("create", path)(source)),
        _ => sync(folder),
    }
}

fn replace(folder: &Path, name: &str, text: &str) -> Result<(), KeyError> {
    let temporary = write_temporary(folder, text)?;
    let path = folder.join(name);
    if let Err(source) = fs::rename(&temporary, &path) {
        remove(&temporary)?;
        return Err(at("replace", &path)(source));
    }
    sync(folder)
}

fn write_temporary(folder: &Path, text: &str) -> Result<PathBuf, KeyError> {
    let path = folder.join(format!(".new-{}", hex::encode(random::<8>())));
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(at("write", &path))?;
    Ok(path)
}

fn remove(path: &Path) -> Result<(), KeyError> {
    fs::remove_file(path).map_err(at("remove", path))
}

/// Makes the folder's entries survive a power cut.
fn sync(folder: &Path) -> Result<(), KeyError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(at("sync", folder))
}

fn read_private(path: &Path) -> Result<String, KeyError> {
    let file = File::open(path).map_err(at("read", path))?;
    let mode = file.metadata().map_err(at("read", path))?.permissions().mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(KeyError::Exposed { path: path.to_owned(), mode });
    }
    io::read_to_string(file).map_err(at("read", path))
}

fn read_retired(folder: &Path) -> Result<Vec<String>, KeyError> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(at("list", folder))? {
        let entry = entry.map_err(at("list", folder))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(RETIRED_PREFIX) && name.ends_with(RETIRED_SUFFIX) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).map_err(at("read", path))).collect()
}

fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeyError {
    let path = path.to_owned();
    move |source| KeyError::File { action, path, source }
}
