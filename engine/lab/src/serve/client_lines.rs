//! What clients of the test service need, as lines for each, as JSON, and as environment variables.

use super::{SERVICE, STATE};
use anyhow::{Context as _, ensure};
use handle_cli::init::new_service::{administrator, secret_identity};
use handle_cli::style::{Paint, paint};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// A test service in its directory.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct TestService {
    #[serde(skip)]
    pub(super) directory: PathBuf,
    pub(super) prefix: String,
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) admin_port: u16,
    pub(super) gateway_port: u16,
}

impl TestService {
    /// The service that was made in `directory`.
    pub(super) fn read(directory: &Path, prefix: &str) -> anyhow::Result<Self> {
        let file = directory.join(STATE);
        let failed = || format!("cannot read {}", file.display());
        let service: Self =
            serde_json::from_slice(&std::fs::read(&file).with_context(failed)?).with_context(failed)?;
        ensure!(
            service.prefix.eq_ignore_ascii_case(prefix),
            "the service in {} has the prefix {}: choose another directory for {prefix}",
            directory.display(),
            service.prefix
        );
        Ok(Self { directory: directory.to_owned(), ..service })
    }

    /// What [`read`](Self::read) reads.
    pub(super) fn state(&self) -> Json {
        json!(self)
    }

    /// A file of `hdl init`.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(SERVICE).join(name)
    }

    /// The configuration of a process.
    pub(super) fn config(&self, process: &str) -> PathBuf {
        self.path(&format!("{process}.toml"))
    }

    pub(super) fn registry(&self) -> PathBuf {
        self.directory.join("registry")
    }

    pub(super) fn registry_config(&self) -> PathBuf {
        self.registry().join("handled.toml")
    }

    pub(super) fn bootstrap(&self) -> PathBuf {
        self.directory.join("bootstrap_handles")
    }

    pub(super) fn secret_file(&self) -> PathBuf {
        self.directory.join("secret")
    }

    fn secret(&self) -> anyhow::Result<String> {
        let file = self.secret_file();
        std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.at(self.gateway_port))
    }

    /// Everything as JSON.
    pub(super) fn json(&self) -> Json {
        json!({
            "prefix": self.prefix,
            "queries": self.at(self.port), "administration": self.at(self.admin_port),
            "url": self.url("https"), "http_url": self.url("http"), "certificate": self.path("certificate.pem"),
            "root": self.bootstrap(), "server_key": self.path("server-public.bin"),
            "identity": administrator(&self.prefix), "key": self.path("admin-private.bin"),
            "username": secret_identity(&self.prefix), "secret_file": self.secret_file(),
            "handleowner": format!("200:0.NA/{}", self.prefix),
            "pids": [std::process::id()],
        })
    }

    /// Environment variables: those of `hdl`, and others for tests of programs.
    pub(super) fn environment(&self) -> anyhow::Result<Vec<(&'static str, String)>> {
        let path = |path: PathBuf| path.display().to_string();
        Ok(vec![
            ("HDL_ROOT", path(self.bootstrap())),
            ("HDL_SERVER", self.at(self.admin_port).to_string()),
            ("HDL_SERVER_KEY", path(self.path("server-public.bin"))),
            ("HDL_AUTH", administrator(&self.prefix)),
            ("HDL_KEY", path(self.path("admin-private.bin"))),
            ("HANDLE_PREFIX", self.prefix.clone()),
            ("HANDLE_URL", self.url("https")),
            ("HANDLE_HTTP_URL", self.url("http")),
            ("HANDLE_CERTIFICATE", path(self.path("certificate.pem"))),
            ("HANDLE_USERNAME", secret_identity(&self.prefix)),
            ("HANDLE_PASSWORD", self.secret()?),
        ])
    }

    /// Prints lines for each client.
    pub(super) fn show(&self) {
        let title = |text: &str| {
            println!();
            println!("{}", paint(Paint::Strong, text));
        };
        let (prefix, certificate) = (&self.prefix, self.path("certificate.pem").display().to_string());
        let (https, http) = (self.url("https"), self.url("http"));
        let (identity, username) = (administrator(prefix), secret_identity(prefix));
        let key = self.path("admin-private.bin").display().to_string();
        let secret = self.secret_file().display().to_string();
        let root = self.bootstrap();
        println!(
            "{}",
            paint(
                Paint::Good,
                format_args!("the service of {prefix} is running in {}", self.directory.display())
            )
        );
        title("curl");
        let owner = json!({ "index": 100, "type": "HS_ADMIN", "data": { "format": "admin", "value":
            { "handle": format!("0.NA/{prefix}"), "index": 200, "permissions": "011111110011" } } });
        let target = json!({ "index": 1, "type": "URL", "data": "https://example.org/" });
        println!(
            "  curl --cacert '{certificate}' --user \"{}:$(cat '{secret}')\" \\",
            username.replace(':', "%3A")
        );
        println!(
            "      -X PUT -H 'Content-Type: application/json' -d '{{\"values\":[{target},{owner}]}}' \\"
        );
        println!("      {https}/api/handles/{prefix}/first");
        println!("  curl {http}/api/handles/{prefix}/first");
        title("hdl");
        println!("  export HDL_ROOT='{}'", root.display());
        println!("  hdl handle create {prefix}/second 1:URL=https://example.org/ 100:HS_ADMIN={identity} \\");
        println!("      --auth {identity} --key '{key}'");
        println!("  hdl resolve {prefix}/second");
        title("pyhandle (a file of credentials; the password is in the file secret)");
        println!(
            "  {}",
            json!({ "client": "rest", "handle_server_url": https, "username": username, "password": "...",
                "prefix": prefix, "handleowner": format!("200:0.NA/{prefix}"), "HTTPS_verify": certificate })
        );
        title("Dataverse (JVM options; the service is found with the bootstrap file in ~/.handle)");
        println!("  install -D -m 0644 '{}' ~/.handle/bootstrap_handles", root.display());
        for (name, value) in [
            ("pid.providers", "test".to_owned()),
            ("pid.default-provider", "test".to_owned()),
            ("pid.test.type", "hdl".to_owned()),
            ("pid.test.label", "test".to_owned()),
            ("pid.test.authority", prefix.clone()),
            ("pid.test.handlenet.key.path", key.clone()),
            // It has to be set, but the key is not encrypted.
            ("pid.test.handlenet.key.passphrase", "unused".to_owned()),
            ("pid.test.handlenet.index", "300".to_owned()),
            ("pid.test.handlenet.auth-handle", format!("{prefix}/ADMIN")),
            ("pid.test.handlenet.independent-service", "true".to_owned()),
        ] {
            println!("  -Ddataverse.{name}={value}");
        }
        title("DSpace (local.cfg; its handles are answered from it: docs/sources.md)");
        println!("  handle.prefix = {prefix}");
        println!("  handle.canonical.prefix = {http}/");
    }
}
