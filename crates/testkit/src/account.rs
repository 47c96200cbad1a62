//! Namespaces and service accounts: each test uses its own, with no more rights than it needs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule};
use kube::api::{Api, ObjectMeta, PostParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::Cluster;
use crate::cluster::TIMEOUT;
use crate::kubeconfig::{self, Credential};

/// A service account with a token, as a program in the cluster would have it.
pub struct Account {
    pub namespace: String,
    pub name: String,
    token: String,
    kubeconfig: PathBuf,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .field("kubeconfig", &self.kubeconfig)
            .finish_non_exhaustive()
    }
}

impl Account {
    pub(crate) fn new(namespace: &str, name: &str, token: String, kubeconfig: PathBuf) -> Account {
        Account {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            token,
            kubeconfig,
        }
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// A kubeconfig of this account; its context names the account's namespace.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client of this account, on the current runtime.
    pub async fn client(&self) -> Result<kube::Client> {
        kubeconfig::client(&self.kubeconfig).await
    }
}

impl Cluster {
    /// Creates a unique namespace whose name starts with `name`, and the one for claims on its pools.
    pub async fn namespace(&self, name: &str) -> Result<String> {
        let name = format!("{name}-{}", self.serial());
        for name in [&name, &format!("berth-{name}")] {
            let object = Namespace {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    ..ObjectMeta::default()
                },
                ..Namespace::default()
            };
            Api::<Namespace>::all(self.client().await?)
                .create(&PostParams::default(), &object)
                .await
                .with_context(|| format!("create namespace {name}"))?;
        }
        if self.admits_accounts() {
            self.default_account(&name).await?;
        }
        Ok(name)
    }

    /// Returns when the controller manager has created the default service account.
    async fn default_account(&self, namespace: &str) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let started = Instant::now();
        while started.elapsed() < TIMEOUT {
            let found = accounts.get_opt("default").await;
            if found.context("get a service account")?.is_some() {
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }
        bail!(
            "namespace {namespace} has no default service account: does the controller manager run?"
        )
    }

    /// Creates a service account and grants it these rules, cluster-wide and nothing else:
    /// `json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }])`.
    pub async fn service_account(
        &self,
        namespace: &str,
        name: &str,
        rules: Value,
    ) -> Result<Account> {
        let rules: Vec<PolicyRule> =
            serde_json::from_value(rules).context("rules of a service account")?;
        let client = self.client().await?;
        let account: ServiceAccount = serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": namespace },
        }))?;
        Api::namespaced(client.clone(), namespace)
            .create(&PostParams::default(), &account)
            .await
            .with_context(|| format!("create service account {namespace}/{name}"))?;
        let role_name = format!("{namespace}-{name}");
        let role = ClusterRole {
            metadata: ObjectMeta {
                name: Some(role_name.clone()),
                ..ObjectMeta::default()
            },
            rules: Some(rules.clone()),
            ..ClusterRole::default()
        };
        Api::all(client.clone())
            .create(&PostParams::default(), &role)
            .await
            .with_context(|| format!("create cluster role {role_name}"))?;
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": { "name": role_name },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role_name,
            },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": namespace }],
        }))?;
        Api::all(client.clone())
            .create(&PostParams::default(), &binding)
            .await
            .with_context(|| format!("bind cluster role {role_name}"))?;
        for rule in &rules {
            granted(&client, (namespace, name), namespace, rule).await?;
        }
        self.account(namespace, name).await
    }

    /// A token and a kubeconfig of an existing service account, such as one from a manifest under test.
    pub async fn account(&self, namespace: &str, name: &str) -> Result<Account> {
        let spec = TokenRequestSpec {
            expiration_seconds: Some(4 * 3600),
            ..TokenRequestSpec::default()
        };
        let token = self.token(namespace, name, spec).await?;
        let kubeconfig = self
            .dir()
            .join(format!("{namespace}-{name}-{}.kubeconfig", self.serial()));
        kubeconfig::write(
            &kubeconfig,
            &self.url(),
            &self.authority.pem(),
            Credential::Token(&token),
            namespace,
        )?;
        Ok(Account {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            token,
            kubeconfig,
        })
    }
}

impl Cluster {
    /// A token for `audience` as the kubelet of `node` would project it into a pod there: bound to that pod, which is
    /// created.
    pub async fn pod_token(&self, account: &Account, node: &str, audience: &str) -> Result<String> {
        let who = (account.namespace.as_str(), account.name.as_str());
        let admin = self.client().await?;
        let spec = bound_to_pod(&admin, who, node, Some(audience)).await?;
        request_token(&admin, who, spec).await
    }

    async fn token(&self, namespace: &str, name: &str, spec: TokenRequestSpec) -> Result<String> {
        request_token(&self.client().await?, (namespace, name), spec).await
    }
}

/// The request for a token of the account `(namespace, name)` that is bound to a pod of it on `node`. The pod is
/// created if it is missing.
pub(crate) async fn bound_to_pod(
    admin: &kube::Client,
    (namespace, name): (&str, &str),
    node: &str,
    audience: Option<&str>,
) -> Result<TokenRequestSpec> {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": format!("{name}-{node}") },
        "spec": {
            "serviceAccountName": name,
            "nodeName": node,
            "containers": [{ "name": "c", "image": "nothing" }],
        },
    }))?;
    let pods = Api::<Pod>::namespaced(admin.clone(), namespace);
    let made = match pods.create(&PostParams::default(), &pod).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            pods.get(&format!("{name}-{node}")).await
        }
        made => made,
    };
    let pod = made.with_context(|| format!("create a pod of {namespace}/{name} on {node}"))?;
    Ok(TokenRequestSpec {
        audiences: audience.map(|audience| vec![audience.to_owned()]),
        expiration_seconds: Some(4 * 3600),
        bound_object_ref: Some(BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: pod.metadata.name,
            uid: pod.metadata.uid,
        }),
    })
}

pub(crate) async fn request_token(
    admin: &kube::Client,
    (namespace, name): (&str, &str),
    spec: TokenRequestSpec,
) -> Result<String> {
    let request = TokenRequest {
        spec: Some(spec),
        ..TokenRequest::default()
    };
    let answer = Api::<ServiceAccount>::namespaced(admin.clone(), namespace)
        .create_token_request(name, &PostParams::default(), &request)
        .await
        .with_context(|| format!("ask for a token of {namespace}/{name}"))?;
    answer
        .status
        .and_then(|status| status.token)
        .with_context(|| format!("no token came for {namespace}/{name}"))
}

/// The API server's authorizer learns of a binding by watch: wait for it, or a test is occasionally refused what it may
/// do.
pub(crate) async fn granted(
    client: &kube::Client,
    (namespace, name): (&str, &str),
    place: &str,
    rule: &PolicyRule,
) -> Result<()> {
    let first = |list: &Option<Vec<String>>| list.as_ref().and_then(|list| list.first()).cloned();
    let Some(resource) = first(&rule.resources) else {
        // Rules for non-resource URLs: rare, and a review of them would look different.
        return Ok(());
    };
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
        None => (resource, None),
    };
    let question: SubjectAccessReview = serde_json::from_value(json!({
        "metadata": {},
        "spec": {
            "user": format!("system:serviceaccount:{namespace}:{name}"),
            "resourceAttributes": {
                "group": first(&rule.api_groups),
                "resource": resource,
                "subresource": subresource,
                "name": first(&rule.resource_names),
                "verb": rule.verbs.first(),
                "namespace": place,
            },
        },
    }))?;
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(20) {
        let answer = reviews
            .create(&PostParams::default(), &question)
            .await
            .context("ask whether a rule is in force")?;
        if answer.status.is_some_and(|status| status.allowed) {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    bail!("the rule {rule:?} of {namespace}/{name} is not in force after 20 s")
}
