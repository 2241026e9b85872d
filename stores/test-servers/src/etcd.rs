//! An etcd server: named by `DLOCK_TEST_ETCD_URL`, else one container that every test process of this machine shares.
//!
//! Owns: where a test's etcd comes from; the image is `DLOCK_ETCD_IMAGE`, else the public one, else the one that
//! `scripts/build-offline-images` makes.
//! Does not own: what is done with it. Each test takes a prefix of its own ([`crate::fresh_schema`]), so that tests run at
//! once.
//! On failure: as for PostgreSQL, see the package.

use crate::{LABEL, parts};
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::time::Duration;
use testcontainers::core::{IntoContainerPort, Mount, WaitFor};
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, ContainerRequest, GenericImage, ImageExt, ReuseDirective};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Where etcd keeps its data in a container from [`etcd_image`].
pub const DATA_DIR: &str = "/etcd-data";

/// The images to try, in order.
#[must_use]
pub fn etcd_images() -> Vec<String> {
    std::env::var("DLOCK_ETCD_IMAGE").map_or_else(
        |_| {
            vec![
                "dlock-offline/etcd:3.5".to_owned(),
                "quay.io/coreos/etcd:v3.5.16".to_owned(),
            ]
        },
        |image| vec![image],
    )
}

/// An etcd server in a container, not started yet; one node without TLS and users.
pub fn etcd_image(image: &str) -> ContainerRequest<GenericImage> {
    etcd_image_with(image, &[])
}

/// As [`etcd_image`], with more of etcd's own flags.
pub fn etcd_image_with(image: &str, flags: &[&str]) -> ContainerRequest<GenericImage> {
    let (name, tag) = parts(image);
    let data = format!("--data-dir={DATA_DIR}/store");
    let mut command = vec![
        data.as_str(),
        "--listen-client-urls=http://0.0.0.0:2379",
        "--advertise-client-urls=http://0.0.0.0:2379",
    ];
    command.extend(flags);
    GenericImage::new(name, tag)
        .with_entrypoint("etcd")
        .with_exposed_port(2379.tcp())
        .with_wait_for(WaitFor::message_on_stderr("ready to serve client requests"))
        .with_cmd(command)
        .with_label(LABEL.0, LABEL.1)
        .with_startup_timeout(Duration::from_secs(60))
}

/// The address of a server, `host:port`. None where there is none and that is no failure.
///
/// # Panics
/// With `CI=true`, when there is none.
pub async fn etcd() -> Option<String> {
    match find().await {
        Ok(at) => Some(at),
        Err(detail) => {
            let wanted = "name a server by DLOCK_TEST_ETCD_URL, or start Docker and run scripts/test-images";
            if std::env::var("CI").is_ok_and(|ci| ci == "true") {
                panic!("no etcd for this test: {detail}; {wanted}");
            }
            eprintln!("\n*** SKIPPED: no etcd for this test: {detail}; {wanted} ***\n");
            None
        }
    }
}

/// As [`etcd`], for a test binary all of whose tests need one: ends the process where there is none and that is no
/// failure, after saying so.
///
/// # Panics
/// As [`etcd`].
pub async fn etcd_or_skip() -> String {
    match etcd().await {
        Some(at) => at,
        None => std::process::exit(0),
    }
}

async fn find() -> Result<String, String> {
    if let Ok(url) = std::env::var("DLOCK_TEST_ETCD_URL") {
        let at = url.trim_start_matches("etcd://").trim_end_matches('/').to_owned();
        return healthy(&at).await.map(|()| at);
    }
    // One process at a time looks for the shared container, so that it is started once.
    let turn = tokio::task::spawn_blocking(|| {
        let path = std::env::temp_dir().join("dlock-test-etcd.lock");
        let file = File::create(path).map_err(|error| error.to_string())?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.to_string())
    })
    .await
    .map_err(|error| error.to_string())??;
    let mut why = String::new();
    for image in etcd_images() {
        let started = etcd_image(&image)
            .with_mount(Mount::tmpfs_mount(DATA_DIR))
            .with_label("dlock-test-server", "etcd")
            .with_reuse(ReuseDirective::Always)
            .start()
            .await;
        let at = match started {
            Ok(container) => etcd_address(&container).await,
            Err(error) => Err(error.to_string()),
        };
        match at {
            Ok(at) => {
                // A container that just began may still be refusing.
                for _ in 0..100 {
                    if healthy(&at).await.is_ok() {
                        drop(turn);
                        return Ok(at);
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                why = format!("{image} does not answer at {at}");
            }
            Err(error) => why = format!("{image}: {error}"),
        }
    }
    Err(why)
}

/// The address of a container from [`etcd_image`]. Its port changes when it is started again.
///
/// # Errors
/// What Docker said.
pub async fn etcd_address(container: &ContainerAsync<GenericImage>) -> Result<String, String> {
    let port = container
        .get_host_port_ipv4(2379.tcp())
        .await
        .map_err(|error| error.to_string())?;
    Ok(format!("127.0.0.1:{port}"))
}

/// Whether a server without TLS says that it is healthy, which takes a leader.
///
/// # Errors
/// What it said instead.
pub async fn healthy(at: &str) -> Result<(), String> {
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(at).await?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    match tokio::time::timeout(Duration::from_secs(5), ask).await {
        Ok(Ok(answer)) if answer.contains(r#""health":"true""#) => Ok(()),
        Ok(Ok(answer)) => Err(format!("{at}: {answer}")),
        Ok(Err(error)) => Err(format!("{at}: {error}")),
        Err(_) => Err(format!("{at}: no answer")),
    }
}
