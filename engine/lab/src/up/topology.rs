//! The sites of the lab: where their servers are, and their keys.

use anyhow::{Context as _, ensure};
use handle_auth::{generate, keyfile};
use handle_proto::data::site::{Interface, InterfaceKind, InterfaceProtocol, SiteBuf, SiteFlags};
use handle_proto::data::site_build::{ServerBuilder, SiteBuilder};
use handle_proto::json::{Json, site_to_json};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use zeroize::Zeroizing;

/// A site of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SiteName {
    /// The global registry.
    Registry,
    /// Four servers, where records are changed.
    Primary,
    /// Two servers with the same records.
    Secondary,
    /// One outdated server.
    Mirror,
    /// The registry of the prefixes derived from 20.500, and of their handles.
    Derived,
}

impl SiteName {
    const ALL: [Self; 5] = [Self::Registry, Self::Primary, Self::Secondary, Self::Mirror, Self::Derived];

    const fn servers_count(self) -> usize {
        match self {
            Self::Primary => 4,
            Self::Secondary => 2,
            Self::Registry | Self::Mirror | Self::Derived => 1,
        }
    }

    const fn is_primary(self) -> bool {
        matches!(self, Self::Registry | Self::Primary | Self::Derived)
    }

    const fn description(self) -> &'static str {
        match self {
            Self::Registry => "lab: global registry",
            Self::Primary => "lab: primary site",
            Self::Secondary => "lab: secondary site",
            Self::Mirror => "lab: outdated mirror",
            Self::Derived => "lab: registry of 20.500",
        }
    }
}

/// A server of the lab.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerSlot {
    /// Its site.
    pub(crate) site: SiteName,
    /// Its position in the site, from 0.
    pub(crate) at: usize,
    /// Where it listens.
    pub(crate) address: SocketAddr,
}

struct Member {
    name: SiteName,
    site: SiteBuf,
    key_file: Zeroizing<Vec<u8>>,
    public_key: Vec<u8>,
    addresses: Vec<SocketAddr>,
}

/// All sites, with their keys.
pub(crate) struct LabTopology {
    members: Vec<Member>,
}

impl LabTopology {
    /// Chooses ports if none are given, and generates the keys.
    pub(crate) fn new(ports: &[u16]) -> anyhow::Result<Self> {
        let count = SiteName::ALL.iter().map(|site| site.servers_count()).sum();
        ensure!(
            ports.len() <= count,
            "too many ports: the lab has {count} servers, but {} ports are given",
            ports.len()
        );
        let mut addresses = addresses(ports, count)?.into_iter();
        // Generating keys takes most of the start-up time.
        let keys = std::thread::scope(|scope| {
            let making = SiteName::ALL.map(|_| scope.spawn(|| generate::rsa(2048)));
            making.map(|making| making.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let mut members = vec![];
        for (name, key) in SiteName::ALL.into_iter().zip(keys) {
            let key = key.context("cannot generate a key")?;
            let public_key = key.view().public().context("an RSA key has a public half")?.to_bytes();
            let addresses: Vec<_> = addresses.by_ref().take(name.servers_count()).collect();
            members.push(Member {
                name,
                site: site(name, &addresses, &public_key),
                key_file: keyfile::plain(&key.view()),
                public_key,
                addresses,
            });
        }
        Ok(Self { members })
    }

    fn member(&self, name: SiteName) -> &Member {
        self.members.iter().find(|member| member.name == name).expect("every site is a member")
    }

    /// The record of a site.
    pub(crate) fn site(&self, name: SiteName) -> &SiteBuf {
        &self.member(name).site
    }

    /// The same as JSON, for siteinfo.json.
    pub(crate) fn site_json(&self, name: SiteName) -> Json {
        site_to_json(&self.site(name).view())
    }

    /// The private key of a site, as a file.
    pub(crate) fn key_file(&self, name: SiteName) -> &[u8] {
        &self.member(name).key_file
    }

    /// The record of the public key of a site.
    pub(crate) fn public_key(&self, name: SiteName) -> &[u8] {
        &self.member(name).public_key
    }

    /// All servers, site by site.
    pub(crate) fn slots(&self) -> Vec<ServerSlot> {
        let of = |member: &Member| {
            let site = member.name;
            member.addresses.clone().into_iter().enumerate().map(move |(at, address)| ServerSlot {
                site,
                at,
                address,
            })
        };
        self.members.iter().flat_map(of).collect()
    }
}

fn site(name: SiteName, addresses: &[SocketAddr], public_key: &[u8]) -> SiteBuf {
    let mut site = SiteBuilder::new();
    site.serial = 1;
    if name.is_primary() {
        site.flags = SiteFlags::PRIMARY;
    }
    site.attribute("desc", name.description());
    for (id, address) in (1..).zip(addresses) {
        let interfaces = [InterfaceProtocol::UDP, InterfaceProtocol::TCP]
            .map(|protocol| Interface::new(InterfaceKind::QUERY, protocol, address.port()));
        site.server(ServerBuilder {
            id,
            address: address.ip().into(),
            public_key: public_key.to_vec(),
            interfaces: interfaces.to_vec(),
        });
    }
    site.build()
}

/// Returns `count` loopback addresses: the given ports, then free ones.
///
/// The free ports lie below the range for ephemeral ports of the kernel, so that no other socket
/// gets the port of a server that is stopped for a while.
pub(crate) fn addresses(ports: &[u16], count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    const RANGE: std::ops::Range<u16> = 20_000..30_000;
    let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut addresses: Vec<SocketAddr> = ports.iter().map(|&port| at(port)).collect();
    let mut port = rand::random_range(RANGE);
    for _ in RANGE {
        if addresses.len() == count {
            return Ok(addresses);
        }
        let address = at(port);
        let is_free = UdpSocket::bind(address).is_ok() && TcpListener::bind(address).is_ok();
        if is_free && !addresses.contains(&address) {
            addresses.push(address);
        }
        port = if port + 1 < RANGE.end { port + 1 } else { RANGE.start };
    }
    anyhow::bail!("cannot find {count} free ports from {} to {}", RANGE.start, RANGE.end)
}
