//! Where the managed PostgreSQL lives, and as whom it runs.

use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::{Uid, User, geteuid};
use sha2::{Digest as _, Sha256};

use super::{ManagedPostgresError, Programs};

/// The port in the name of the socket; nothing listens on a real one.
pub(super) const PORT: u16 = 5432;
/// The longest path of a Unix socket, in bytes: macOS has room for 104 with the zero at the end, Linux for 108.
const SOCKET_PATH_MAX: usize = 103;

/// The unprivileged user as whom PostgreSQL runs when this process is root, which PostgreSQL refuses to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunAs {
    name: String,
    uid: u32,
    gid: u32,
}

impl RunAs {
    /// `None` when this process is no root and needs no other user.
    pub fn choose() -> Result<Option<Self>, ManagedPostgresError> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        let known = ["postgres", "nobody"].into_iter().filter_map(|name| User::from_name(name).ok().flatten());
        let user = known.into_iter().next().ok_or(ManagedPostgresError::NoUser)?;
        Ok(Some(Self { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw() }))
    }
}

/// Makes `command` run as `user`.
pub(super) fn run_as(command: &mut Command, user: Option<&RunAs>) {
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
}

/// Everything about where one managed PostgreSQL lives.
#[derive(Debug)]
pub(super) struct Place {
    /// The programs to run.
    pub programs: Programs,
    /// As whom.
    pub user: Option<RunAs>,
    /// The folder of this major version, of the user's own.
    pub home: PathBuf,
    /// The socket's folder, which only the user can enter.
    pub sockets: PathBuf,
    /// The server's log, beside the home: what root opens must not lie in a folder of another user.
    pub log: PathBuf,
    /// What the person at the terminal should know.
    pub notes: Vec<String>,
    /// Held until the end.
    _lock: DataLock,
}

impl Place {
    /// Decides and makes the folders.
    pub fn prepare(data: &Path, fallback: &Path, programs: Vec<Programs>) -> Result<Self, ManagedPostgresError> {
        let user = RunAs::choose()?;
        let data = make_data_folder(data)?;
        let lock = DataLock::take(&data)?;
        let other = fallback.join(short_name(&data));
        let mut notes = Vec::new();
        let programs = choose_version(programs, [&data, &other], &mut notes)?;
        let name = format!("postgres-{}", programs.major);
        let mut parent = data.clone();
        if let Some(user) = &user {
            let (near, far) = (data.join(&name), other.join(&name));
            if has_cluster(&near) || !has_cluster(&far) {
                make_private(&near, Some(user))?;
            }
            if has_cluster(&far) && !has_cluster(&near) || !reaches(&near, user) {
                if has_cluster(&near) {
                    return Err(ManagedPostgresError::Unreachable { folder: near, user: user.name.clone() });
                }
                // Left empty it would only mislead; a folder that has something in it stays.
                let _ = std::fs::remove_dir(&near);
                make_open(&other)?;
                parent = other;
                let (data, user) = (data.display(), &user.name);
                let place = parent.display();
                notes.push(format!(
                    "PostgreSQL does not run as root, and user {user} cannot reach {data}: its data is in {place}"
                ));
            }
        }
        let home = parent.join(&name);
        make_private(&home, user.as_ref())?;
        let sockets = socket_folder(&home, user.as_ref())?;
        let log = parent.join(format!("{name}.log"));
        Ok(Self { programs, user, home, sockets, log, notes, _lock: lock })
    }

    /// The database cluster's folder.
    pub fn cluster(&self) -> PathBuf {
        self.home.join("data")
    }

    /// Whether the cluster is there; it appears as a whole.
    pub fn is_initialized(&self) -> bool {
        has_cluster(&self.home)
    }

    /// Removes the socket's folder when it lies outside the home.
    pub fn remove_short_folder(&self) {
        if !self.sockets.starts_with(&self.home) {
            // Somebody's file in it keeps it, and the next start takes it over.
            let _ = std::fs::remove_dir(&self.sockets);
        }
    }
}

fn has_cluster(home: &Path) -> bool {
    home.join("data/PG_VERSION").exists()
}

/// Prefers the version that has data here, so that a newer package does not seem to have lost everything.
fn choose_version(
    found: Vec<Programs>,
    parents: [&PathBuf; 2],
    notes: &mut Vec<String>,
) -> Result<Programs, ManagedPostgresError> {
    let has_data = |major: u32| parents.iter().any(|parent| has_cluster(&parent.join(format!("postgres-{major}"))));
    let index = found.iter().position(|programs| has_data(programs.major)).unwrap_or(0);
    let chosen = found.into_iter().nth(index).ok_or_else(ManagedPostgresError::missing)?;
    let major = chosen.major;
    if !has_data(major) {
        let others = (super::programs::OLDEST_MAJOR..major + 10).filter(|other| has_data(*other));
        notes.extend(others.map(|other| {
            format!("there is data of PostgreSQL {other}, whose programs are gone: starting empty with {major}")
        }));
    }
    Ok(chosen)
}

/// Makes the data folder; as root such that others can pass through it, though not list it.
fn make_data_folder(data: &Path) -> Result<PathBuf, ManagedPostgresError> {
    let failed = |source| ManagedPostgresError::folder(data, source);
    if !data.exists() {
        let absolute = std::path::absolute(data).map_err(failed)?;
        if let Some(parent) = absolute.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        make_open(&absolute)?;
    }
    data.canonicalize().map_err(failed)
}

/// Makes `folder`, through which another user can pass when this process is root.
fn make_open(folder: &Path) -> Result<(), ManagedPostgresError> {
    let failed = |source| ManagedPostgresError::folder(folder, source);
    std::fs::create_dir_all(folder).map_err(failed)?;
    let mode = if geteuid().is_root() { 0o711 } else { 0o700 };
    std::fs::set_permissions(folder, Permissions::from_mode(mode)).map_err(failed)
}

/// Makes `folder`, which is `user`'s alone.
fn make_private(folder: &Path, user: Option<&RunAs>) -> Result<(), ManagedPostgresError> {
    let failed = |source| ManagedPostgresError::folder(folder, source);
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => user.map_or(Ok(()), |user| chown(folder, Some(user.uid), Some(user.gid))).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = folder.symlink_metadata().map_err(failed)?;
            let owner = user.map_or_else(|| geteuid().as_raw(), |user| user.uid);
            if found.is_dir() && found.uid() == owner && matches!(found.mode() & 0o777, 0o700 | 0o500) {
                return Ok(());
            }
            let owner = Uid::from_raw(owner);
            Err(failed(io::Error::other(format!("is there, but is no folder of user {owner}'s alone (mode 0700)"))))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Whether `user` can work in `folder`; asks the system, which knows about more than modes.
fn reaches(folder: &Path, user: &RunAs) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", "cd \"$1\" && test -w .", "sh"]).arg(folder).current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    run_as(&mut command, Some(user));
    command.status().is_ok_and(|status| status.success())
}

/// The socket's folder: in `home`, or a short one elsewhere when the path would not fit into a socket's address, or has
/// a comma, at which clients split lists of hosts.
fn socket_folder(home: &Path, user: Option<&RunAs>) -> Result<PathBuf, ManagedPostgresError> {
    let within = home.join("socket");
    let comma = |folder: &Path| folder.as_os_str().as_bytes().contains(&b',');
    let fits = |folder: &Path| socket_path_length(folder) <= SOCKET_PATH_MAX && !comma(folder);
    let folder = if fits(&within) {
        within
    } else {
        // The runtime folder is its owner's alone, so it is no place for another user's socket.
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|_| user.is_none());
        let bases = runtime.into_iter().filter(|folder| folder.is_dir()).chain([PathBuf::from("/tmp")]);
        let mut short = bases.map(|base| base.join(format!("mandate-{}", short_name(home))));
        short.find(|folder| fits(folder)).unwrap_or(within)
    };
    make_private(&folder, user)?;
    Ok(folder)
}

fn socket_path_length(folder: &Path) -> usize {
    folder.join(format!(".s.PGSQL.{PORT}")).as_os_str().len()
}

/// A short name that is always the same for one path.
fn short_name(path: &Path) -> String {
    hex::encode(&Sha256::digest(path.as_os_str().as_bytes())[..6])
}

/// Keeps a second `mandate dev` out of a data folder; the system lets go of it when the process ends, however it ends.
#[derive(Debug)]
struct DataLock(#[expect(dead_code, reason = "the open file is the lock")] File);

impl DataLock {
    fn take(data: &Path) -> Result<Self, ManagedPostgresError> {
        let path = data.join("dev.lock");
        let failed = |source| ManagedPostgresError::folder(&path, source);
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // Without it the message is only less helpful.
                let _ = file.read_to_string(&mut pid);
                return Err(ManagedPostgresError::InUse { data: data.to_path_buf(), pid: pid.trim().to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let pid = std::process::id();
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{pid}")).map_err(failed)?;
        Ok(Self(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_gets_a_short_socket_folder_that_is_always_the_same() {
        let base = tempfile::tempdir().unwrap();
        let long = base.path().join("a".repeat(90));
        std::fs::create_dir(&long).unwrap();
        let folder = socket_folder(&long, None).unwrap();
        assert!(socket_path_length(&folder) <= SOCKET_PATH_MAX, "{}", folder.display());
        assert!(!folder.starts_with(&long));
        assert_eq!(folder.metadata().unwrap().mode() & 0o777, 0o700);
        assert_eq!(socket_folder(&long, None).unwrap(), folder);
        std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let refused = socket_folder(&long, None).unwrap_err().to_string();
        assert!(refused.contains("alone"), "a folder that others can enter is not used: {refused}");
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn the_version_that_has_data_is_preferred_and_lost_ones_are_told() {
        let data = tempfile::tempdir().unwrap();
        let parents = [&data.path().to_path_buf(), &PathBuf::from("/does/not/exist")];
        let versions = |majors: &[u32]| -> Vec<Programs> {
            majors.iter().map(|major| Programs { folder: PathBuf::from("/bin"), major: *major }).collect()
        };
        let mut notes = Vec::new();
        assert_eq!(choose_version(versions(&[17, 15]), parents, &mut notes).unwrap().major, 17);
        let cluster = data.path().join("postgres-15/data");
        std::fs::create_dir_all(&cluster).unwrap();
        std::fs::write(cluster.join("PG_VERSION"), "15").unwrap();
        assert_eq!(choose_version(versions(&[17, 15]), parents, &mut notes).unwrap().major, 15);
        assert_eq!(notes, [""; 0]);
        assert_eq!(choose_version(versions(&[17]), parents, &mut notes).unwrap().major, 17);
        assert_eq!(notes.len(), 1);
        assert!(notes[0].contains("PostgreSQL 15"), "{notes:?}");
        let missing = choose_version(Vec::new(), parents, &mut notes).unwrap_err().to_string();
        assert!(missing.contains("package"), "{missing}");
    }
}
