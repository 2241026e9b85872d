//! Containers that a run starts, hurts and takes away.
//!
//! Owns: containers, networks and volumes with the label [`LABEL`], their published ports on the loopback interface, and
//! that they go: at the end of a run, and by the reaper when the run itself was killed.
//! Does not own: what is done to one that runs (`container.rs`), what runs in it (`postgres.rs`, `etcd.rs`); images: they
//! have to be there or be pulled beforehand.
//! On failure: [`RunError`] with what the engine said and the end of the container's log.

use super::container::Container;
use crate::stack::RunError;
use crate::stack::processes::Lab;
use bollard::models::{ContainerCreateBody, HostConfig, NetworkCreateRequest, PortBinding, VolumeCreateRequest};
use bollard::query_parameters::{CreateContainerOptionsBuilder, StartContainerOptions};
use host_kit::Reserved;
use std::collections::HashMap;

/// The label of everything that is made here; its value is the run's own id.
pub const LABEL: &str = "dlock-harness";

/// The engine, and what this run has started on it.
#[derive(Clone)]
pub struct Docker {
    pub(super) api: bollard::Docker,
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
    /// The port of it that is published, on the loopback interface.
    pub port: u16,
    /// Directories that are held in memory.
    pub tmpfs: Vec<String>,
    /// Volumes of this run, by their full names, and where each is seen.
    pub volumes: Vec<(String, String)>,
    /// The network it publishes its port on.
    pub network: String,
    /// Other networks that it is in, and its name there.
    pub also_in: Vec<(String, String)>,
    /// Directories and files of this machine that it sees: `from:to[:ro]`.
    pub binds: Vec<String>,
    /// The user it runs as; the image's where it is empty.
    pub user: String,
    /// Capabilities that its superuser has besides the usual ones.
    pub capabilities: Vec<String>,
    /// A small init is its first process, which hands on signals and the exit code: what runs in it can then stop or kill
    /// itself, which the first process of a container cannot.
    pub init: bool,
}

pub(super) fn engine(what: impl Into<String>) -> impl FnOnce(bollard::errors::Error) -> RunError {
    let what = what.into();
    move |error| RunError::Other(format!("{what}: {error}"))
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

    pub(super) fn own(&self, name: &str) -> String {
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

    /// Makes a volume of this run with these options of the local driver. Answers its full name.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn volume(&self, name: &str, options: &[(&str, &str)]) -> Result<String, RunError> {
        let own = self.own(name);
        let options = options.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
        self.api
            .create_volume(VolumeCreateRequest {
                name: Some(own.clone()),
                driver_opts: Some(options.collect()),
                labels: Some(self.labels()),
                ..Default::default()
            })
            .await
            .map_err(engine(format!("making the volume {name}")))?;
        self.lab.reap("volume", &own);
        Ok(own)
    }

    /// Starts a container. It stays until it is removed or the run ends.
    ///
    /// # Errors
    /// What the engine said.
    pub async fn start(&self, spec: ContainerSpec) -> Result<Container, RunError> {
        // A container keeps its port over its restarts.
        let reserved = Reserved::loopback().map_err(RunError::io("keeping a port"))?;
        let id = self.create(&spec, reserved.port()).await?;
        self.lab.reap("container", &self.own(&spec.name));
        let container = Container::new(self.clone(), id, spec, reserved);
        container.begin().await?;
        Ok(container)
    }

    /// Makes a container, which does not run yet. Answers its id.
    pub(super) async fn create(&self, spec: &ContainerSpec, host_port: u16) -> Result<String, RunError> {
        let port = format!("{}/tcp", spec.port);
        let bindings = HashMap::from([(
            port.clone(),
            Some(vec![PortBinding {
                host_ip: Some("127.0.0.1".to_owned()),
                host_port: Some(host_port.to_string()),
            }]),
        )]);
        let volumes = spec.volumes.iter().map(|(volume, at)| format!("{volume}:{at}"));
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
                tmpfs: Some(spec.tmpfs.iter().map(|dir| (dir.clone(), String::new())).collect()),
                binds: Some(volumes.chain(spec.binds.iter().cloned()).collect()),
                cap_add: Some(spec.capabilities.clone()),
                init: Some(spec.init),
                ..Default::default()
            }),
            ..Default::default()
        };
        let options = CreateContainerOptionsBuilder::default()
            .name(&self.own(&spec.name))
            .build();
        let made = self.api.create_container(Some(options), body).await;
        Ok(made.map_err(engine(format!("making container {}", spec.name)))?.id)
    }

    /// Starts a container that was made or has ended.
    pub(super) async fn run(&self, id: &str, name: &str) -> Result<(), RunError> {
        let started = self.api.start_container(id, None::<StartContainerOptions>).await;
        started.map_err(engine(format!("starting container {name}")))
    }
}

impl std::fmt::Debug for Docker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Docker").field("run", &self.run).finish_non_exhaustive()
    }
}
