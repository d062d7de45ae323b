//! The log line of one answer, in the format of the reference server or as JSON.

use super::QueryLogFormat;
use crate::counters::Transport;
use handle_proto::limit::UDP_MESSAGE_LEN_MAX;
use handle_proto::wire::admin::HandleBody;
use handle_proto::wire::envelope::EnvelopeFlags;
use handle_proto::wire::query::Query;
use handle_proto::wire::{Envelope, Header, Message};
use handle_proto::{OpCode, ResponseCode, Version};
use jiff::Timestamp;
use serde_json::json;
use std::fmt::Write as _;
use std::net::IpAddr;

/// Maximum bytes of a handle in the log. Longer handles, which only occur over TCP, are truncated.
pub const HANDLE_KEPT: usize = UDP_MESSAGE_LEN_MAX;

/// Properties of one answer. The type contains no pointers, so that entries are copied through the
/// queue.
#[derive(Clone, Copy, Debug)]
pub struct QueryLogEntry {
    /// Time at which the batch was received, in microseconds since 1970.
    pub unix_us: i64,
    /// Address of the client, truncated to the bits that may be logged.
    pub ip: IpAddr,
    /// Number of bits of `ip` that were kept.
    pub ip_bits: u8,
    /// Transport of the request.
    pub transport: Transport,
    /// Protocol version that the request suggests.
    pub version: Version,
    /// Operation code of the request.
    pub op_code: OpCode,
    /// Response code of the answer.
    pub response_code: ResponseCode,
    /// Time since the batch was received, in microseconds.
    pub took_us: u32,
    handle_len: u16,
    handle: [u8; HANDLE_KEPT],
}

/// The fields of a request that are logged; zero for a request that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSummary<'a> {
    version: Version,
    op_code: OpCode,
    handle: &'a [u8],
}

impl<'a> RequestSummary<'a> {
    /// Reads a request, starting with its envelope.
    #[must_use]
    pub fn read(request: &'a [u8]) -> Self {
        let mut summary = Self { version: Version::COMPATIBLE, op_code: OpCode::RESERVED, handle: &[] };
        let Ok((envelope, rest)) = Envelope::split(request) else { return summary };
        summary.version = envelope.effective_suggested();
        if envelope.flags.has(EnvelopeFlags::ENCRYPTED) {
            return summary;
        }
        let rest = &rest[..rest.len().min(envelope.message_len as usize)];
        let Ok(message) = Message::decode(rest) else { return summary };
        summary.op_code = message.header.op_code;
        let body = message.covered.get(Header::LEN..).unwrap_or_default();
        summary.handle = match summary.op_code {
            OpCode::RESOLUTION => Query::decode(body).map_or(&[], |query| query.handle),
            OpCode::GET_SITE_INFO => HandleBody::decode(body).map_or(&[], |body| body.handle),
            _ => &[],
        };
        summary
    }
}

impl QueryLogEntry {
    /// The entry for a request from `ip`, of which `ip_bits` bits are kept.
    #[must_use]
    pub fn new(
        transport: Transport,
        ip: IpAddr,
        ip_bits: u8,
        summary: RequestSummary<'_>,
        response_code: ResponseCode,
    ) -> Self {
        let handle_len = summary.handle.len().min(HANDLE_KEPT);
        let mut handle = [0; HANDLE_KEPT];
        handle[..handle_len].copy_from_slice(&summary.handle[..handle_len]);
        #[expect(clippy::cast_possible_truncation, reason = "at most HANDLE_KEPT")]
        let handle_len = handle_len as u16;
        Self {
            unix_us: 0,
            ip,
            ip_bits,
            transport,
            version: summary.version,
            op_code: summary.op_code,
            response_code,
            took_us: 0,
            handle_len,
            handle,
        }
    }

    fn handle(&self) -> &[u8] {
        &self.handle[..usize::from(self.handle_len)]
    }

    /// Appends the line, with its line end.
    pub fn write(&self, format: QueryLogFormat, out: &mut String) {
        // Writing to a string cannot fail.
        let _ = match format {
            QueryLogFormat::Handle => self.write_as_reference(out),
            QueryLogFormat::Json => self.write_as_json(out),
        };
        out.push('\n');
    }

    /// `<ip> <interface> "<time>" <op code> <response code> <n>ms <admin> <handle or />`; there are
    /// no administrators here, so two blanks precede the handle.
    fn write_as_reference(&self, out: &mut String) -> std::fmt::Result {
        let interface = match self.transport {
            Transport::Udp => "UDP",
            Transport::Tcp => "TCP",
        };
        let Version { major, minor } = self.version;
        let time = Timestamp::from_microsecond(self.unix_us).unwrap_or(Timestamp::UNIX_EPOCH);
        let time = time.strftime("%Y-%m-%d %H:%M:%S%.3fZ");
        let (op, code, ms) = (self.op_code.0, self.response_code.0, self.took_us / 1000);
        write!(out, "{} {interface}:HDL({major}.{minor}) \"{time}\" {op} {code} {ms}ms  ", self.ip)?;
        match self.handle() {
            b"" => out.push('/'),
            handle => escape(handle, out),
        }
        Ok(())
    }

    fn write_as_json(&self, out: &mut String) -> std::fmt::Result {
        let time = Timestamp::from_microsecond(self.unix_us).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut handle = String::new();
        escape(self.handle(), &mut handle);
        let line = json!({
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
            "ip": self.ip.to_string(),
            "ip_bits": self.ip_bits,
            "transport": self.transport.name(),
            "version": format!("{}.{}", self.version.major, self.version.minor),
            "op_code": self.op_code.0,
            "response_code": self.response_code.0,
            "took_us": self.took_us,
            "handle": (!handle.is_empty()).then_some(handle),
        });
        write!(out, "{line}")
    }
}

/// Writes `bytes` as text without blanks: blank, `%`, `?`, `#` and `&`, control characters and
/// bytes that are not UTF-8 are percent-encoded; all other characters stay as they are.
fn escape(bytes: &[u8], out: &mut String) {
    let encode = |bytes: &[u8], out: &mut String| {
        for byte in bytes {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    };
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                ' ' | '%' | '?' | '#' | '&' => encode(&[char as u8], out),
                // Some readers treat Unicode line separators as the end of a line.
                char if char.is_control() || char.is_whitespace() => {
                    encode(char.encode_utf8(&mut [0; 4]).as_bytes(), out);
                }
                char => out.push(char),
            }
        }
        encode(chunk.invalid(), out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use handle_proto::OpFlags;
    use handle_proto::wire::list::{Indexes, Strings};
    use handle_proto::wire::{MessageBuf, Request};

    fn request(handle: &[u8]) -> Vec<u8> {
        let (envelope, header) =
            (Envelope::request(1), Header::request(OpCode::RESOLUTION, OpFlags::PLAIN_REQUEST, 0));
        let query = Query { handle, indexes: Indexes::EMPTY, types: Strings::EMPTY };
        MessageBuf::request(&envelope, &header, &Request::Resolution(query)).unsigned().unwrap()
    }

    fn line(format: QueryLogFormat, transport: Transport, request: &[u8], code: ResponseCode) -> String {
        let mut entry =
            QueryLogEntry::new(transport, [127, 0, 0, 1].into(), 32, RequestSummary::read(request), code);
        // 2026-11-20 08:31:04.689 UTC and some microseconds.
        (entry.unix_us, entry.took_us) = (1_795_163_464_689_123, 1999);
        let mut line = String::new();
        entry.write(format, &mut line);
        line
    }

    #[test]
    fn the_line_of_the_reference_is_the_one_it_writes() {
        let found =
            line(QueryLogFormat::Handle, Transport::Udp, &request(b"20.500.1/hello"), ResponseCode::SUCCESS);
        assert_eq!(found, "127.0.0.1 UDP:HDL(2.11) \"2026-11-20 08:31:04.689Z\" 1 1 1ms  20.500.1/hello\n");
        let none =
            line(QueryLogFormat::Handle, Transport::Tcp, &request(b"1/a"), ResponseCode::HANDLE_NOT_FOUND);
        assert_eq!(none, "127.0.0.1 TCP:HDL(2.11) \"2026-11-20 08:31:04.689Z\" 1 100 1ms  1/a\n");
        let site = MessageBuf::request(
            &Envelope::request(1),
            &Header::request(OpCode::GET_SITE_INFO, OpFlags::PLAIN_REQUEST, 0),
            &Request::GetSiteInfo(HandleBody { handle: b"" }),
        );
        let site =
            line(QueryLogFormat::Handle, Transport::Udp, &site.unsigned().unwrap(), ResponseCode::SUCCESS);
        assert_eq!(site, "127.0.0.1 UDP:HDL(2.11) \"2026-11-20 08:31:04.689Z\" 2 1 1ms  /\n");
    }

    #[test]
    fn json_has_the_same_and_microseconds() {
        let line = line(
            QueryLogFormat::Json,
            Transport::Udp,
            &request("10.1/ä \"\\\n%".as_bytes()),
            ResponseCode::SUCCESS,
        );
        assert_eq!(
            line,
            "{\"time\":\"2026-11-20T08:31:04.689123Z\",\"ip\":\"127.0.0.1\",\"ip_bits\":32,\"transport\":\"udp\",\
             \"version\":\"2.11\",\"op_code\":1,\"response_code\":1,\"took_us\":1999,\
             \"handle\":\"10.1/ä%20\\\"\\\\%0A%25\"}\n"
        );
    }

    #[test]
    fn whatever_a_handle_holds_the_line_is_one_line_with_as_many_fields() {
        let escaped = |bytes: &[u8]| {
            let mut out = String::new();
            escape(bytes, &mut out);
            out
        };
        // Characters that the reference server encodes.
        assert_eq!(
            escaped("weird %25 ä+b c?d#e&f=g;h".as_bytes()),
            "weird%20%2525%20ä+b%20c%3Fd%23e%26f=g;h"
        );
        // Characters that the reference server does not encode.
        assert_eq!(escaped(b"a\xff\xc3b\r\n\0\x7f"), "a%FF%C3b%0D%0A%00%7F");
        assert_eq!(escaped("\u{85}\u{2028}\u{a0}".as_bytes()), "%C2%85%E2%80%A8%C2%A0");
        for byte in 0..=255u8 {
            let handle = [b'1', b'/', byte, byte, b'x'];
            let line = line(QueryLogFormat::Handle, Transport::Udp, &request(&handle), ResponseCode::SUCCESS);
            assert_eq!((line.matches('\n').count(), line.split(' ').count()), (1, 9), "{byte:#04x}: {line}");
        }
    }

    #[test]
    fn what_cannot_be_read_has_a_line_as_well() {
        let whole = request(b"10.1/a");
        for len in 0..whole.len() {
            let line =
                line(QueryLogFormat::Handle, Transport::Udp, &whole[..len], ResponseCode::PROTOCOL_ERROR);
            assert_eq!(line.split(' ').count(), 9, "cut to {len}: {line}");
        }
        let none = line(QueryLogFormat::Handle, Transport::Udp, b"nonsense", ResponseCode::PROTOCOL_ERROR);
        assert!(none.ends_with(" 0 4 1ms  /\n"), "{none}");
        let mut encrypted = whole;
        encrypted[2] |= 0x40;
        let unread = line(QueryLogFormat::Handle, Transport::Tcp, &encrypted, ResponseCode::SUCCESS);
        assert!(unread.ends_with(" 0 1 1ms  /\n"), "what is encrypted is not guessed at: {unread}");
        let long = request(&[b'a'; HANDLE_KEPT + 9]);
        let line = line(QueryLogFormat::Handle, Transport::Tcp, &long, ResponseCode::HANDLE_NOT_FOUND);
        assert!(line.ends_with(&format!("  {}\n", "a".repeat(HANDLE_KEPT))), "the rest is missing");
    }
}
