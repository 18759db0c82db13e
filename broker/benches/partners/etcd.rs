//! Three members of etcd, and a client that speaks its gRPC by hand: one message is all it needs.
//!
//! A gRPC call is an HTTP/2 request whose body is a byte (not compressed), the length, and the
//! message in protocol buffers; it went well if the trailer `grpc-status` is 0.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use axum::body::Bytes;
use axum::http::{HeaderMap, Request};
use h2::client::SendRequest;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::processes::{free_port, listening, program, start};

/// A running cluster; it ends when this is dropped.
pub(crate) struct Etcd {
    _members: Vec<Child>,
    leader: SocketAddr,
}

/// The settings of each member, beside names and addresses: the defaults, which fsync.
const SETTINGS: [&str; 2] = ["--logger=zap", "--log-level=warn"];

impl Etcd {
    /// Starts three members below `folder` and finds out who leads.
    ///
    /// # Errors
    /// etcd is not installed or does not come up.
    pub(crate) async fn start(folder: &Path) -> anyhow::Result<Self> {
        let binary = program("etcd", &[])?;
        let mut addresses = Vec::new();
        for _ in 0..3 {
            addresses.push((free_port()?, free_port()?));
        }
        let cluster: Vec<String> =
            (0..3).map(|number| format!("m{number}=http://{}", addresses[number].1)).collect();
        let mut members = Vec::new();
        for (number, (client, peer)) in addresses.iter().enumerate() {
            let mut command = Command::new(&binary);
            command
                .arg(format!("--name=m{number}"))
                .arg(format!("--data-dir={}", folder.join(format!("etcd-{number}")).display()))
                .arg(format!("--listen-client-urls=http://{client}"))
                .arg(format!("--advertise-client-urls=http://{client}"))
                .arg(format!("--listen-peer-urls=http://{peer}"))
                .arg(format!("--initial-advertise-peer-urls=http://{peer}"))
                .arg(format!("--initial-cluster={}", cluster.join(",")))
                .args(["--initial-cluster-state=new", "--initial-cluster-token=partners"])
                .args(SETTINGS);
            members.push(start(&mut command, &folder.join(format!("etcd-{number}.log")))?);
        }
        for (number, (client, _)) in addresses.iter().enumerate() {
            let log = folder.join(format!("etcd-{number}.log"));
            listening(&mut members[number], *client, &log).await?;
        }
        for (client, _) in &addresses {
            if Client::connect(*client).await?.leads().await? {
                return Ok(Self { _members: members, leader: *client });
            }
        }
        bail!("no member of etcd leads")
    }

    /// The version, as the program tells it.
    ///
    /// # Errors
    /// etcd is not installed.
    pub(crate) async fn version() -> anyhow::Result<String> {
        let asked = Command::new(program("etcd", &[])?).arg("--version").output().await?;
        let said = String::from_utf8_lossy(&asked.stdout);
        Ok(said.lines().next().unwrap_or("etcd of an unknown version").to_owned())
    }

    /// `count` connections to the member that leads.
    ///
    /// # Errors
    /// It does not take them.
    pub(crate) async fn clients(&self, count: usize) -> anyhow::Result<Vec<Client>> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(Client::connect(self.leader).await?);
        }
        Ok(clients)
    }
}

/// A connection to one member. Its clones share it.
#[derive(Clone)]
pub(crate) struct Client {
    requests: SendRequest<Bytes>,
    member: SocketAddr,
}

impl Client {
    async fn connect(member: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(member).await?;
        stream.set_nodelay(true)?;
        let (requests, connection) = h2::client::handshake(stream).await?;
        tokio::spawn(async move {
            // Its end is seen by whoever asks next.
            drop(connection.await);
        });
        Ok(Self { requests, member })
    }

    async fn call(&self, method: &str, message: &[u8]) -> anyhow::Result<Vec<u8>> {
        let request = Request::post(format!("http://{}/{method}", self.member))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let mut body = vec![0];
        body.extend_from_slice(&u32::try_from(message.len())?.to_be_bytes());
        body.extend_from_slice(message);
        let mut requests = self.requests.clone().ready().await?;
        let (answer, mut stream) = requests.send_request(request, false)?;
        stream.send_data(body.into(), true)?;
        let (head, mut answer) = answer.await?.into_parts();
        let mut bytes = Vec::new();
        while let Some(chunk) = answer.data().await {
            let chunk = chunk?;
            answer.flow_control().release_capacity(chunk.len())?;
            bytes.extend_from_slice(&chunk);
        }
        let trailers = answer.trailers().await?;
        let status = |headers: &HeaderMap| headers.get("grpc-status").cloned();
        let status = trailers.as_ref().and_then(status).or_else(|| status(&head.headers));
        let status = status.context("an answer without a status")?;
        ensure!(status == "0", "{method}: status {status:?}");
        Ok(bytes.split_off(5.min(bytes.len())))
    }

    /// Stores `value` under `key`; acknowledged once a quorum has fsynced it and the member applied it.
    ///
    /// # Errors
    /// It was not acknowledged.
    pub(crate) async fn put(&self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        let mut message = Vec::new();
        field(&mut message, 1, key)?;
        field(&mut message, 2, value)?;
        self.call("etcdserverpb.KV/Put", &message).await.map(drop)
    }

    /// Whether this member leads.
    async fn leads(&self) -> anyhow::Result<bool> {
        let answer = self.call("etcdserverpb.Maintenance/Status", &[]).await?;
        // Field 1 is a header whose field 2 is the member; field 4 is the leader.
        let header = fields(&answer)?.into_iter().find(|(number, ..)| *number == 1);
        let (_, _, header) = header.context("a status without a header")?;
        let number = |fields: Vec<Field<'_>>, wanted| {
            fields.into_iter().find(|(number, ..)| *number == wanted).map(|(_, value, _)| value)
        };
        let member = number(fields(header)?, 2).context("a header without its member")?;
        Ok(number(fields(&answer)?, 4) == Some(member))
    }
}

/// Appends a field of bytes.
fn field(message: &mut Vec<u8>, number: u64, bytes: &[u8]) -> anyhow::Result<()> {
    varint(message, number << 3 | 2);
    varint(message, u64::try_from(bytes.len())?);
    message.extend_from_slice(bytes);
    Ok(())
}

fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        let [low, ..] = value.to_le_bytes();
        message.push(low | 0x80);
        value >>= 7;
    }
    let [low, ..] = value.to_le_bytes();
    message.push(low);
}

/// A field: its number, its value if it is one, its bytes if it has some.
type Field<'b> = (u64, u64, &'b [u8]);

/// The fields of a message of numbers and bytes.
fn fields(mut message: &[u8]) -> anyhow::Result<Vec<Field<'_>>> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = take_varint(&mut message)?;
        let value = take_varint(&mut message)?;
        match tag & 7 {
            0 => found.push((tag >> 3, value, &[][..])),
            2 => {
                let cut = message.split_at_checked(usize::try_from(value)?);
                let (bytes, rest) = cut.context("a field that is cut off")?;
                found.push((tag >> 3, 0, bytes));
                message = rest;
            }
            other => bail!("a field of kind {other}"),
        }
    }
    Ok(found)
}

fn take_varint(message: &mut &[u8]) -> anyhow::Result<u64> {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (byte, rest) = message.split_first().context("a number that is cut off")?;
        *message = rest;
        ensure!(shift < 64, "a number that is too long");
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
}
