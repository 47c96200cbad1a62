//! Accounts of agents as deploy/ grants them: the shipped roles, the shipped policies, and a token that is bound to a
//! node.
//!
//! Guarantees: when an account is returned, its rights and the policies are in force. Every agent of the test suite has
//! such an account, so a write that the policies wrongly deny fails a test.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, PostParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::account::{self, granted};
use crate::kubeconfig::{self, Credential};
use crate::{Account, Cluster};

/// The service account's name; the policies know agents by it.
const NAME: &str = "berth-agent";
/// The namespace in the manifests.
const HOME: &str = "kube-system";

const POLICIES: &str = include_str!("../../../deploy/agent/policies.yaml");
const CONTROLLER_POLICIES: &str = include_str!("../../../deploy/controller/policies.yaml");
const RIGHTS: [&str; 3] = [
    include_str!("../../../deploy/agent/rbac.yaml"),
    include_str!("../../../deploy/slices/rbac.yaml"),
    include_str!("../../../deploy/agent/leases.yaml"),
];

/// The agents of one namespace. Outlives the [`Cluster`] value that created it: it has its own connection.
#[derive(Clone, Debug)]
pub struct Agents {
    namespace: String,
    /// The administrator's.
    admin: PathBuf,
    url: String,
    authority: String,
    dir: PathBuf,
}

impl Cluster {
    /// Applies the manifests of agents to a namespace, as a kustomization with that namespace would, and waits until
    /// they are in force. Both sets of policies apply: those of agents, and those that ship with the controller.
    pub async fn agents(&self, namespace: &str) -> Result<Agents> {
        let agents = self.granted_agents(namespace).await?;
        let with = self.police(&agents, true).await?;
        ensure!(with, "this cluster's agents are without a controller");
        Ok(agents)
    }

    /// The same where no controller is deployed: the policies on entries and reservations do not apply. For tests of
    /// that mode, on a cluster of their own: policies apply to the agents of all namespaces.
    pub async fn agents_without_a_controller(&self, namespace: &str) -> Result<Agents> {
        let agents = self.granted_agents(namespace).await?;
        let with = self.police(&agents, false).await?;
        ensure!(!with, "this cluster's agents are beside a controller");
        Ok(agents)
    }

    async fn granted_agents(&self, namespace: &str) -> Result<Agents> {
        let mut rules = Vec::new();
        for document in documents(&RIGHTS)? {
            let Some(document) = moved(document, namespace) else {
                continue;
            };
            let place = document["metadata"]["namespace"]
                .as_str()
                .unwrap_or("default");
            if let Some(rule) = document["rules"].get(0) {
                rules.push((place.to_owned(), rule.clone()));
            }
            self.apply_object(document).await?;
        }
        let client = self.client().await?;
        for (place, rule) in rules {
            let rule: PolicyRule = serde_json::from_value(rule).context("a rule of deploy/")?;
            let (who, in_namespace) = ((namespace, NAME), place.as_str());
            granted(&client, who, in_namespace, &rule).await?;
        }
        let agents = Agents {
            namespace: namespace.to_owned(),
            admin: self.kubeconfig(),
            url: self.url(),
            authority: self.authority.pem(),
            dir: self.dir().to_owned(),
        };
        Ok(agents)
    }

    /// The account of the agent on one node.
    pub async fn agent(&self, namespace: &str, node: &str) -> Result<Account> {
        self.agents(namespace).await?.on(node).await
    }

    /// Applies the policies and waits for them; whether those that ship with the controller are among them.
    async fn police(&self, agents: &Agents, controller: bool) -> Result<bool> {
        let applied = self.policed.get_or_try_init(async || {
            match controller {
                true => self.set_policies(agents, true).await?,
                false => {
                    let (policies, bindings) = policies(&[POLICIES])?;
                    for policy in policies.into_iter().chain(bindings) {
                        self.apply_object(policy).await?;
                    }
                    self.policed(agents, true).await?;
                }
            }
            anyhow::Ok(controller)
        });
        applied.await.copied().context("the policies of deploy/")
    }

    /// Puts all policies on agents in force, including the controller's, or removes all of them: for a benchmark that
    /// compares both.
    pub async fn set_policies(&self, agents: &Agents, on: bool) -> Result<()> {
        let (policies, bindings) = policies(&[CONTROLLER_POLICIES, POLICIES])?;
        for policy in policies {
            self.apply_object(policy).await?;
        }
        let resource = ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&());
        let api: Api<DynamicObject> = Api::all_with(self.client().await?, &resource);
        for binding in bindings {
            let name = binding["metadata"]["name"].as_str().unwrap_or_default();
            match on {
                true => drop(self.apply_object(binding).await?),
                false => match api.delete(name, &DeleteParams::default()).await {
                    // It was not in force before either.
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    deleted => drop(deleted?),
                },
            }
        }
        self.policed(agents, on).await
    }

    /// Waits until the API server has noticed what was applied or deleted, about a second later.
    async fn policed(&self, agents: &Agents, on: bool) -> Result<()> {
        let account = agents.on("no-such-node").await?;
        let events: Api<Event> = Api::namespaced(account.client().await?, &agents.namespace);
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(60) {
            let name = format!("probe-{}", self.serial());
            let forged: Event = serde_json::from_value(json!({
                "metadata": { "name": name, "namespace": agents.namespace },
                "involvedObject": { "kind": "Pod", "namespace": agents.namespace, "name": "p" },
                "source": { "component": "berth", "host": "another-node" },
            }))?;
            let denied = match events.create(&params, &forged).await {
                Ok(_) => false,
                Err(kube::Error::Api(status)) if status.code == 403 => true,
                Err(error) => return Err(error).context("try a forged event"),
            };
            if denied == on {
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }
        bail!("in force is {}, and still not so after 60 s", !on)
    }
}

impl Agents {
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The account of the agent on `node`: its token is bound to a pod there, which is created.
    pub async fn on(&self, node: &str) -> Result<Account> {
        let admin = kubeconfig::client(&self.admin).await?;
        let spec = account::bound_to_pod(&admin, (&self.namespace, NAME), node, None).await?;
        let token = account::request_token(&admin, (&self.namespace, NAME), spec).await?;
        let file = format!("{}-{NAME}-{node}.kubeconfig", self.namespace);
        let path = self.dir.join(file);
        let credential = Credential::Token(&token);
        kubeconfig::write(
            &path,
            &self.url,
            &self.authority,
            credential,
            &self.namespace,
        )?;
        Ok(Account::new(&self.namespace, NAME, token, path))
    }
}

/// Policies and their bindings: bindings come last, so that the last one can be waited for.
fn policies(texts: &[&str]) -> Result<(Vec<Value>, Vec<Value>)> {
    let all = documents(texts)?.into_iter();
    Ok(all.partition(|one| one["kind"] == "ValidatingAdmissionPolicy"))
}

fn documents(texts: &[&str]) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for text in texts {
        let read: Vec<Value> =
            serde_saphyr::from_multiple(text).context("read a manifest of deploy/")?;
        all.extend(read.into_iter().filter(|document| !document.is_null()));
    }
    Ok(all)
}

/// The document moved to that namespace; `None` if it is not about agents.
fn moved(mut document: Value, namespace: &str) -> Option<Value> {
    let metadata = &mut document["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default().to_owned();
    let named = metadata["namespace"].as_str().map(str::to_owned);
    if document["kind"] != "Lease" && name != NAME {
        return None;
    }
    if document["kind"] == "ClusterRoleBinding" {
        document["metadata"]["name"] = json!(format!("{NAME}-{namespace}"));
    }
    let place = |home: &str| match home {
        HOME => namespace.to_owned(),
        other => other.replace(HOME, namespace),
    };
    if let Some(home) = named {
        document["metadata"]["namespace"] = json!(place(&home));
    }
    let subjects = document.get_mut("subjects").and_then(Value::as_array_mut);
    for subject in subjects.into_iter().flatten() {
        subject["namespace"] = json!(namespace);
    }
    Some(document)
}
