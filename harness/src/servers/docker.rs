//! Containers that a run starts, hurts and takes away.
//!
//! Owns: containers and networks with the label [`LABEL`], their published ports on the loopback interface, what is run
//! inside them, and that they go: at the end of a run, and by the reaper when the run itself was killed.
//! Does not own: what runs in them (`postgres.rs`, `etcd.rs`); images: they have to be there or be pulled beforehand.
//! On failure: [`RunError`] with what the engine said and the end of the container's log.

use crate::stack::RunError;
use crate::stack::processes::Lab;
use bollard::container::LogOutput;
use bollard::exec::StartExecResults;
use bollard::models::{
    ContainerCreateBody, EndpointSettings, ExecConfig, HostConfig, NetworkConnectRequest, NetworkCreateRequest,
    NetworkDisconnectRequest, PortBinding,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, KillContainerOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder,
    StartContainerOptions,
};
use futures_util::StreamExt;
use std::collections::HashMap;
use std::net::TcpListener;

/// The label of everything that is made here; its value is the run's own id.
pub const LABEL: &str = "dlock-harness";

/// How much of a container's log is shown with an error.
const LOG_TAIL_LINES: &str = "30";

/// The engine, and what this run has started on it.
#[derive(Clone)]
pub struct Docker {
    api: bollard::Docker,
    lab: Lab,
    run: String,
}

/// A container to be started.
#[derive(Clone, Debug, Default)]
pub struct ContainerSpec {
    /// Its name within the run, and its host name in the run's networks.
    pub name: String,
    /// The image.
    pub image: String,
    /// Its command; the image's where it is empty.
    pub cmd: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    /// The port of it that is published.
    pub port: u16,
    /// Directories that are held in memory.
    pub tmpfs: Vec<String>,
    /// The network it publishes its port on.
    pub network: String,
    /// Other networks that it is in, and its name there.
    pub also_in: Vec<(String, String)>,
    /// Directories and files of this machine that it sees: `from:to[:ro]`.
    pub binds: Vec<String>,
    /// The user it runs as; the image's where it is empty.
    pub user: String,
    /// A small init is its first process, which hands on signals and the exit code: what runs in it can then stop or kill
    /// itself, which the first process of a container cannot.
    pub init: bool,
}

fn engine(what: impl Into<String>) -> impl FnOnce(bollard::errors::Error) -> RunError {
    let what = what.into();
    move |error| RunError::Other(format!("{what}: {error}"))
}

/// A port of the loopback interface that was free a moment ago, so that a container keeps it over its restarts.
fn free_port() -> Result<u16, RunError> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(RunError::io("finding a free port"))
}

impl Docker {
    /// The engine that the environment names, as for Docker's own client.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn connect(lab: &Lab) -> Result<Self, RunError> {
        let api = bollard::Docker::connect_with_local_defaults().map_err(engine("finding Docker"))?;
        api.ping().await.map_err(engine("Docker does not answer"))?;
        Ok(Self {
            api,
            lab: lab.clone(),
            run: lab.host().ids.ulid().to_ascii_lowercase(),
        })
    }

    /// The first of these images that is there.
    ///
    /// # Errors
    /// When none is, with what to do.
    pub async fn image(&self, variable: &str, candidates: &[&str]) -> Result<String, RunError> {
        let named = std::env::var(variable).ok();
        let candidates: Vec<&str> = named
            .as_deref()
            .map_or_else(|| candidates.to_vec(), |image| vec![image]);
        for image in &candidates {
            if self.api.inspect_image(image).await.is_ok() {
                return Ok((*image).to_owned());
            }
        }
        Err(RunError::Other(format!(
            "there is no image {}: pull it, or build it with scripts/build-offline-images, or name one by {variable}",
            candidates.join(" or ")
        )))
    }

    fn own(&self, name: &str) -> String {
        format!("dlock-{}-{name}", self.run)
    }

    fn labels(&self) -> HashMap<String, String> {
        HashMap::from([(LABEL.to_owned(), self.run.clone())])
    }

    /// Makes a network of this run. Answers its full name.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn network(&self, name: &str) -> Result<String, RunError> {
        let own = self.own(name);
        self.api
            .create_network(NetworkCreateRequest {
                name: own.clone(),
                labels: Some(self.labels()),
                ..Default::default()
            })
            .await
            .map_err(engine(format!("making the network {name}")))?;
        self.lab.reap("network", &own);
        Ok(own)
    }

    /// Starts a container. It stays until it is removed or the run ends.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn start(&self, spec: ContainerSpec) -> Result<Container, RunError> {
        let own = self.own(&spec.name);
        let what = |step: &str| engine(format!("{step} container {}", spec.name));
        let host_port = free_port()?;
        let port = format!("{}/tcp", spec.port);
        let bindings = HashMap::from([(
            port.clone(),
            Some(vec![PortBinding {
                host_ip: Some("127.0.0.1".to_owned()),
                host_port: Some(host_port.to_string()),
            }]),
        )]);
        let body = ContainerCreateBody {
            image: Some(spec.image.clone()),
            hostname: Some(spec.name.clone()),
            cmd: (!spec.cmd.is_empty()).then(|| spec.cmd.clone()),
            env: Some(spec.env.clone()),
            user: (!spec.user.is_empty()).then(|| spec.user.clone()),
            exposed_ports: Some(vec![port]),
            labels: Some(self.labels()),
            host_config: Some(HostConfig {
                port_bindings: Some(bindings),
                network_mode: Some(spec.network.clone()),
                binds: (!spec.binds.is_empty()).then(|| spec.binds.clone()),
                init: Some(spec.init),
                tmpfs: Some(spec.tmpfs.iter().map(|dir| (dir.clone(), String::new())).collect()),
                ..Default::default()
            }),
            ..Default::default()
        };
        let options = CreateContainerOptionsBuilder::default().name(&own).build();
        let id = self
            .api
            .create_container(Some(options), body)
            .await
            .map_err(what("making"))?
            .id;
        self.lab.reap("container", &own);
        let container = Container {
            docker: self.clone(),
            id,
            name: spec.name.clone(),
            full_name: own.clone(),
            network: spec.network.clone(),
            port: spec.port,
            host_port,
        };
        for (network, alias) in &spec.also_in {
            container.join(network, alias).await?;
        }
        self.api
            .start_container(&container.id, None::<StartContainerOptions>)
            .await
            .map_err(what("starting"))?;
        Ok(container)
    }
}

impl std::fmt::Debug for Docker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Docker").field("run", &self.run).finish_non_exhaustive()
    }
}

/// A container of this run.
#[derive(Clone, Debug)]
pub struct Container {
    docker: Docker,
    id: String,
    /// Its name within the run.
    pub name: String,
    /// Its name for the engine, and for others in its network.
    pub full_name: String,
    /// The network on which its port is published.
    pub network: String,
    /// Its port, as others in its network reach it.
    pub port: u16,
    /// Where its port is on the loopback interface.
    pub host_port: u16,
}

impl Container {
    fn failed(&self, what: &str) -> impl FnOnce(bollard::errors::Error) -> RunError + use<> {
        engine(format!("{what} {}", self.name))
    }

    /// Stops every process of it where it stands.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn pause(&self) -> Result<(), RunError> {
        let paused = self.docker.api.pause_container(&self.id).await;
        paused.map_err(self.failed("pausing"))
    }

    /// Lets it run on.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn resume(&self) -> Result<(), RunError> {
        let resumed = self.docker.api.unpause_container(&self.id).await;
        resumed.map_err(self.failed("resuming"))
    }

    /// Kills it with SIGKILL.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn kill(&self) -> Result<(), RunError> {
        let options = KillContainerOptionsBuilder::default().signal("KILL").build();
        let killed = self.docker.api.kill_container(&self.id, Some(options)).await;
        killed.map_err(self.failed("killing"))
    }

    /// Starts it again with the data it had, on the same port.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn restart(&self) -> Result<(), RunError> {
        let api = &self.docker.api;
        let started = api.start_container(&self.id, None::<StartContainerOptions>).await;
        started.map_err(self.failed("starting"))
    }

    /// Takes it out of a network. Where its port was published by another network, that stays.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn leave(&self, network: &str) -> Result<(), RunError> {
        let request = NetworkDisconnectRequest {
            container: self.id.clone(),
            force: Some(true),
        };
        let left = self.docker.api.disconnect_network(network, request).await;
        left.map_err(self.failed("disconnecting"))
    }

    /// Puts it into a network under a name.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn join(&self, network: &str, alias: &str) -> Result<(), RunError> {
        let request = NetworkConnectRequest {
            container: self.id.clone(),
            endpoint_config: Some(EndpointSettings {
                aliases: Some(vec![alias.to_owned()]),
                ..Default::default()
            }),
        };
        let joined = self.docker.api.connect_network(network, request).await;
        joined.map_err(self.failed("connecting"))
    }

    /// Runs a command inside, as this user. Answers its exit code and what it printed.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn exec(&self, user: &str, command: &[&str]) -> Result<(i64, String), RunError> {
        let api = &self.docker.api;
        let config = ExecConfig {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            user: (!user.is_empty()).then(|| user.to_owned()),
            cmd: Some(command.iter().map(|&word| word.to_owned()).collect()),
            ..Default::default()
        };
        let what = || self.failed(&format!("running {} in", command.join(" ")));
        let exec = api.create_exec(&self.id, config).await.map_err(what())?.id;
        let mut printed = String::new();
        if let StartExecResults::Attached { mut output, .. } = api.start_exec(&exec, None).await.map_err(what())? {
            while let Some(chunk) = output.next().await {
                printed.push_str(&chunk.map_err(what())?.to_string());
            }
        }
        let inspected = api.inspect_exec(&exec).await.map_err(what())?;
        Ok((inspected.exit_code.unwrap_or(-1), printed))
    }

    /// As [`Container::exec`] for a command that has to succeed.
    ///
    /// # Errors
    /// As there, and when it does not exit with 0.
    pub async fn run(&self, user: &str, command: &[&str]) -> Result<String, RunError> {
        match self.exec(user, command).await? {
            (0, printed) => Ok(printed),
            (code, printed) => Err(RunError::Other(format!(
                "{} in {} exited with {code}: {}",
                command.join(" "),
                self.name,
                printed.trim()
            ))),
        }
    }

    /// The end of its log, for an error.
    pub async fn log_tail(&self) -> String {
        let options = LogsOptionsBuilder::default()
            .stdout(true)
            .stderr(true)
            .tail(LOG_TAIL_LINES)
            .build();
        let chunks = self.docker.api.logs(&self.id, Some(options));
        let lines: Vec<String> = chunks
            .filter_map(async |chunk| chunk.ok().as_ref().map(LogOutput::to_string))
            .collect()
            .await;
        lines.concat()
    }

    /// Takes it away with its data.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn remove(&self) -> Result<(), RunError> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let removed = self.docker.api.remove_container(&self.id, Some(options)).await;
        removed.map_err(self.failed("removing"))
    }
}
