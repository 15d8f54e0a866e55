//! Finding PostgreSQL's programs, and the package that brings them.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest major version of PostgreSQL that is used.
pub const OLDEST_MAJOR: u32 = 14;

/// The programs of one PostgreSQL installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// The folder with `postgres`, `initdb` and `pg_ctl`.
    pub folder: PathBuf,
    /// The major version: data of one is no data of another.
    pub major: u32,
}

impl Programs {
    /// The programs in `folder`, if the three are there and say which version they are.
    pub fn at(folder: &Path) -> Option<Self> {
        let complete = ["postgres", "initdb", "pg_ctl"].iter().all(|name| folder.join(name).is_file());
        let output = complete.then(|| Command::new(folder.join("postgres")).arg("--version").output().ok())??;
        let major = major_of(&String::from_utf8_lossy(&output.stdout))?;
        Some(Self { folder: folder.to_path_buf(), major })
    }

    /// Every installation that this machine has, in the order of preference: Debian's folders from the newest version
    /// down, those of other distributions, `PATH`, Homebrew. Versions before [`OLDEST_MAJOR`] are left out.
    pub fn find() -> Vec<Self> {
        Self::find_under(Path::new("/"), std::env::var_os("PATH").as_deref())
    }

    /// [`find`](Self::find), with `root` in place of `/`.
    fn find_under(root: &Path, path: Option<&OsStr>) -> Vec<Self> {
        let mut folders = Vec::new();
        for (parent, prefix, below) in [
            ("usr/lib/postgresql", "", "bin"),
            ("usr", "pgsql-", "bin"),
            ("usr/libexec", "postgresql", ""),
            ("", "PATH", ""),
            ("opt/homebrew/opt", "postgresql", "bin"),
            ("usr/local/opt", "postgresql", "bin"),
            ("home/linuxbrew/.linuxbrew/opt", "postgresql", "bin"),
        ] {
            if prefix == "PATH" {
                // A link in PATH leads to the folder where the other programs are.
                let found = path.into_iter().flat_map(std::env::split_paths).map(|folder| folder.join("postgres"));
                let real = found.filter_map(|program| program.canonicalize().ok());
                folders.extend(real.filter_map(|program| program.parent().map(Path::to_path_buf)));
                continue;
            }
            let names = std::fs::read_dir(root.join(parent)).into_iter().flatten().flatten();
            let names = names.filter_map(|entry| entry.file_name().into_string().ok());
            let mut names: Vec<_> = names.filter(|name| name.starts_with(prefix)).collect();
            names.sort_by_key(|name| std::cmp::Reverse(first_number(name)));
            folders.extend(names.iter().map(|name| root.join(parent).join(name).join(below)));
        }
        let mut found: Vec<Self> = Vec::new();
        for folder in folders {
            if found.iter().all(|earlier| earlier.folder != folder) {
                found.extend(Self::at(&folder).filter(|programs| programs.major >= OLDEST_MAJOR));
            }
        }
        found
    }
}

/// The major version in `postgres (PostgreSQL) 15.18 (Debian …)`.
fn major_of(version: &str) -> Option<u32> {
    version.split_once("(PostgreSQL)").and_then(|(_, rest)| first_number(rest))
}

fn first_number(text: &str) -> Option<u32> {
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    digits.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// A way to install packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PackageManager {
    /// Debian, Ubuntu and their like.
    Apt,
    /// Fedora and its like.
    Dnf,
    /// Alpine.
    Apk,
    /// macOS.
    Brew,
}

impl PackageManager {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Apt, Self::Dnf, Self::Apk, Self::Brew];

    /// The one that this machine has.
    pub fn here() -> Option<Self> {
        Self::ALL.into_iter().find(|manager| in_path(manager.program()))
    }

    fn program(self) -> &'static str {
        match self {
            Self::Apt => "apt-get",
            Self::Dnf => "dnf",
            Self::Apk => "apk",
            Self::Brew => "brew",
        }
    }

    fn system(self) -> &'static str {
        match self {
            Self::Apt => "Debian, Ubuntu",
            Self::Dnf => "Fedora",
            Self::Apk => "Alpine",
            Self::Brew => "macOS",
        }
    }

    /// The package with PostgreSQL's server.
    pub fn package(self) -> &'static str {
        match self {
            Self::Apt | Self::Apk => "postgresql",
            Self::Dnf => "postgresql-server",
            Self::Brew => "postgresql@17",
        }
    }

    /// The commands that install the package, in order, each with its arguments.
    pub fn commands(self, as_root: bool) -> Vec<Vec<&'static str>> {
        let package = self.package();
        let commands = match self {
            Self::Apt => vec![vec!["apt-get", "update"], vec!["apt-get", "install", "--yes", package]],
            Self::Dnf => vec![vec!["dnf", "install", "--assumeyes", package]],
            Self::Apk => vec![vec!["apk", "add", package]],
            // Homebrew refuses to run as root.
            Self::Brew => return vec![vec!["brew", "install", package]],
        };
        let prefix: &[&str] = if as_root { &[] } else { &["sudo"] };
        commands.into_iter().map(|command| [prefix, &command].concat()).collect()
    }
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH");
    path.iter().flat_map(std::env::split_paths).any(|folder| folder.join(program).is_file())
}

/// There is no usable PostgreSQL; the text says which package brings it, this system's first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub struct MissingPrograms {
    /// This system's package manager.
    pub here: Option<PackageManager>,
}

impl fmt::Display for MissingPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "PostgreSQL {OLDEST_MAJOR} or newer was not found (programs postgres, initdb and pg_ctl).")?;
        if let Some(here) = self.here {
            writeln!(f, "Install the package {}: run `mandate dev --install`, or", here.package())?;
        } else {
            writeln!(f, "Install the package that brings them:")?;
        }
        let listed = PackageManager::ALL.into_iter().filter(|manager| self.here.is_none_or(|here| here == *manager));
        for manager in listed {
            let commands: Vec<_> = manager.commands(true).iter().map(|command| command.join(" ")).collect();
            writeln!(f, "  {}: {}", manager.system(), commands.join(" && "))?;
        }
        f.write_str("or name the folder that has them.")
    }
}

/// Why the package could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// No package manager that is known here.
    #[error("found none of apt-get, dnf, apk and brew to install PostgreSQL with")]
    NoManager,
    /// A command could not be run at all.
    #[error("cannot run `{command}`: {reason}")]
    NotRun {
        /// The command.
        command: String,
        /// What the system says.
        reason: io::Error,
    },
    /// A command failed; it has said why on the terminal.
    #[error("`{command}` failed ({status})")]
    Failed {
        /// The command.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
    },
}

/// Installs PostgreSQL's server with the system's package manager, through `sudo` when not root; its output and
/// questions go to the terminal. Blocks until it is done.
///
/// # Errors
/// No package manager, or one that fails.
pub fn install() -> Result<(), InstallError> {
    let manager = PackageManager::here().ok_or(InstallError::NoManager)?;
    for arguments in manager.commands(nix::unistd::geteuid().is_root()) {
        let command = arguments.join(" ");
        let status = Command::new(arguments[0]).args(&arguments[1..]).status();
        let status = status.map_err(|reason| InstallError::NotRun { command: command.clone(), reason })?;
        if !status.success() {
            return Err(InstallError::Failed { command, status });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn fake(folder: &Path, version: &str) {
        std::fs::create_dir_all(folder).unwrap();
        for name in ["postgres", "initdb", "pg_ctl"] {
            let program = folder.join(name);
            std::fs::write(&program, format!("#!/bin/sh\necho 'postgres (PostgreSQL) {version}'\n")).unwrap();
            std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn the_newest_of_debian_comes_before_path_and_homebrew() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().canonicalize().unwrap().join(path);
        for (folder, version) in [
            ("usr/lib/postgresql/9.6/bin", "9.6.24"),
            ("usr/lib/postgresql/15/bin", "15.18 (Debian 15.18-0+deb12u1)"),
            ("usr/lib/postgresql/17/bin", "17.2"),
            ("somewhere", "18beta1"),
            ("opt/homebrew/opt/postgresql@16/bin", "16.1 (Homebrew)"),
        ] {
            fake(&at(folder), version);
        }
        std::fs::create_dir_all(at("usr/lib/postgresql/99/bin")).unwrap();
        std::fs::create_dir_all(at("bin")).unwrap();
        symlink(at("somewhere/postgres"), at("bin/postgres")).unwrap();
        let found = Programs::find_under(&at(""), Some(at("bin").as_os_str()));
        let found: Vec<_> = found.iter().map(|programs| (programs.major, programs.folder.clone())).collect();
        let expected = [
            (17, at("usr/lib/postgresql/17/bin")),
            (15, at("usr/lib/postgresql/15/bin")),
            (18, at("somewhere")),
            (16, at("opt/homebrew/opt/postgresql@16/bin")),
        ];
        assert_eq!(found, expected);
        assert_eq!(Programs::find_under(&at("opt"), None), []);
    }

    #[test]
    fn missing_programs_name_the_package_and_the_command() {
        let text = MissingPrograms { here: Some(PackageManager::Apt) }.to_string();
        assert!(text.contains("package postgresql") && text.contains("mandate dev --install"), "{text}");
        assert!(text.contains("apt-get install --yes postgresql") && !text.contains("dnf"), "{text}");
        let text = MissingPrograms { here: None }.to_string();
        for part in ["Debian, Ubuntu: apt-get", "dnf install --assumeyes postgresql-server", "apk add", "brew install"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn installs_through_sudo_unless_root_and_never_with_homebrew() {
        assert_eq!(PackageManager::Dnf.commands(false)[0][..3], ["sudo", "dnf", "install"]);
        assert_eq!(PackageManager::Apk.commands(true), [["apk", "add", "postgresql"]]);
        assert_eq!(PackageManager::Brew.commands(false)[0][0], "brew");
    }
}
