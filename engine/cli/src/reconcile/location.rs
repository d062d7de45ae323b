//! The locations that are compared, as they are written on the command line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Command;

/// Start of the name of a location on another machine.
const SSH: &str = "ssh://";
/// Start of the name of a server whose handles are listed.
const SERVER: &str = "server:";

/// Where records, or names, are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RecordLocation {
    /// A file or directory here.
    Path(PathBuf),
    /// A file or directory of another machine.
    Remote(RemoteLocation),
    /// A server that lists its handles: host, and port if it is another one.
    Server(String),
}

/// A file or directory of a machine with an SSH server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteLocation {
    /// Host, perhaps with a user in front.
    host: String,
    port: Option<u16>,
    path: String,
}

/// Parses a location on the command line.
pub(super) fn parse(text: &OsStr) -> Result<RecordLocation, String> {
    let Some(name) = text.to_str() else { return Ok(RecordLocation::Path(text.into())) };
    if let Some(server) = name.strip_prefix(SERVER) {
        return Ok(RecordLocation::Server(server.to_owned()));
    }
    let Some(rest) = name.strip_prefix(SSH) else { return Ok(RecordLocation::Path(text.into())) };
    parse_remote(rest)
        .map(RecordLocation::Remote)
        .ok_or_else(|| "expected ssh://[USER@]HOST[:PORT]/PATH".to_owned())
}

fn parse_remote(text: &str) -> Option<RemoteLocation> {
    let (host, path) = text.split_at(text.find('/')?);
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let (host, port) = match host.rsplit_once(':') {
        // The port after an IPv6 address in brackets, or after a name.
        Some((host, port)) if is_port(port) && (!host.contains(':') || host.ends_with(']')) => {
            (host, Some(port.parse().ok()?))
        }
        _ => (host, None),
    };
    let host: String = host.chars().filter(|letter| !"[]".contains(*letter)).collect();
    // An option of ssh could run any command.
    let is_host = !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:@%".contains(&byte))
        && !host.split('@').any(|part| part.is_empty() || part.starts_with('-'));
    (is_host && path.len() > 1).then(|| RemoteLocation { host, port, path: path.to_owned() })
}

impl RemoteLocation {
    /// Its name in messages.
    pub(super) fn shown(&self) -> String {
        format!("{}:{}", self.host, self.path)
    }

    /// The command that runs `hdl` there.
    pub(super) fn command(&self, ssh: &str, remote_hdl: &str) -> Command {
        let mut words = ssh.split_whitespace().map(OsString::from);
        let mut command = Command::new(words.next().unwrap_or_else(|| "ssh".into()));
        command.args(words);
        if let Some(port) = self.port {
            command.args(["-p", &port.to_string()]);
        }
        // The shell of the other machine reads the last argument.
        let there = format!("{} reconcile --serve {}", quoted(remote_hdl), quoted(&self.path));
        command.args(["--", &self.host, &there]);
        command
    }
}

/// A word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(host: &str, port: Option<u16>, path: &str) -> RecordLocation {
        RecordLocation::Remote(RemoteLocation { host: host.to_owned(), port, path: path.to_owned() })
    }

    #[test]
    fn locations_are_paths_servers_or_on_another_machine() {
        for (text, location) in [
            ("set", RecordLocation::Path("set".into())),
            ("-", RecordLocation::Path("-".into())),
            ("/a/ssh:/b", RecordLocation::Path("/a/ssh:/b".into())),
            ("server:192.0.2.1:2642", RecordLocation::Server("192.0.2.1:2642".to_owned())),
            ("ssh://mirror/set", remote("mirror", None, "/set")),
            ("ssh://root@mirror.example:2222/a b/c", remote("root@mirror.example", Some(2222), "/a b/c")),
            ("ssh://[2001:db8::1]:22/set", remote("2001:db8::1", Some(22), "/set")),
            ("ssh://[2001:db8::1]/set", remote("2001:db8::1", None, "/set")),
        ] {
            assert_eq!(parse(text.as_ref()), Ok(location), "{text}");
        }
        for text in [
            "ssh://mirror",
            "ssh://mirror/",
            "ssh:///set",
            "ssh://-oProxyCommand=x/set",
            "ssh://a@-oProxyCommand/set",
            "ssh://a b/set",
            "ssh://mirror:99999/set",
            "ssh://@mirror/set",
        ] {
            assert!(parse(text.as_ref()).is_err(), "{text}");
        }
    }

    #[test]
    fn the_other_shell_gets_each_word_as_one() {
        let RecordLocation::Remote(location) = remote("root@mirror", Some(22), "/it's $HOME") else {
            unreachable!()
        };
        let command = location.command("ssh -i key", "/opt/hdl");
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let there = r"'/opt/hdl' reconcile --serve '/it'\''s $HOME'";
        assert_eq!(words, ["-i", "key", "-p", "22", "--", "root@mirror", there]);
        assert_eq!(command.get_program(), "ssh");
    }
}
