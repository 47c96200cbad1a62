//! Lists of objects, shown one object at a time.
//!
//! Of a page only the text is held beside the one object that is shown: a list of whole objects would need ten times its
//! size. So no function here returns one.

use std::fmt;

use kube::api::ListParams;
use kube::core;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::KubeError;
use crate::client::{ObjectClient, Request, parse};
use crate::resource::Resource;
use crate::response::{Failure, Verb};

/// Which objects of a kind a list or a watch is about.
#[derive(Clone, Copy, Debug)]
pub struct Selection<'a> {
    /// A label selector; empty for any.
    pub labels: &'a str,
    /// A field selector; empty for any.
    pub fields: &'a str,
    /// Objects in one answer of a list.
    pub page: u32,
    /// Of all namespaces, and not of the client's alone.
    pub everywhere: bool,
    /// As the API server's cache has them, in one answer: they may be old, and cost no read of etcd.
    pub cached: bool,
}

impl Default for Selection<'_> {
    fn default() -> Self {
        Self {
            labels: "",
            fields: "",
            page: 500,
            everywhere: false,
            cached: false,
        }
    }
}

impl Selection<'_> {
    fn params(&self) -> ListParams {
        let params = match self.cached {
            true => ListParams::default().match_any(),
            false => ListParams::default().limit(self.page),
        };
        ListParams {
            label_selector: text(self.labels),
            field_selector: text(self.fields),
            ..params
        }
    }
}

/// A selector, if there is one.
pub(crate) fn text(selector: &str) -> Option<String> {
    (!selector.is_empty()).then(|| selector.to_owned())
}

/// How a page is requested: of whole objects or of their metadata.
type PageRequest = fn(&core::Request, &ListParams) -> Request;

impl ObjectClient {
    /// Shows every object with these labels to `visit`, page by page, and drops it.
    pub async fn reduce<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        labels: &str,
        page: u32,
        visit: impl FnMut(T),
    ) -> Result<(), KubeError> {
        let selection = Selection {
            labels,
            page,
            ..Selection::default()
        };
        self.list(resource, &selection, visit).await
    }

    /// Shows every selected object to `visit`, page by page, and drops it.
    pub async fn list<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
        visit: impl FnMut(T),
    ) -> Result<(), KubeError> {
        self.list_by(resource, selection, core::Request::list, visit)
            .await
    }

    /// The same with the objects' metadata alone.
    pub async fn list_metadata<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
        visit: impl FnMut(T),
    ) -> Result<(), KubeError> {
        self.list_by(resource, selection, core::Request::list_metadata, visit)
            .await
    }

    /// What `pick` takes of the metadata of the objects with these labels: what is not picked is not kept.
    pub async fn pick_metadata<T>(
        &self,
        resource: &'static Resource,
        labels: &str,
        page: u32,
        pick: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, KubeError> {
        let selection = Selection {
            labels,
            page,
            ..Selection::default()
        };
        self.pick(resource, &selection, pick).await
    }

    /// The same as the API server's cache has them: they may be old, and cost no read of etcd.
    pub async fn pick_cached_metadata<T>(
        &self,
        resource: &'static Resource,
        labels: &str,
        pick: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, KubeError> {
        let selection = Selection {
            labels,
            cached: true,
            ..Selection::default()
        };
        self.pick(resource, &selection, pick).await
    }

    async fn pick<T>(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
        pick: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, KubeError> {
        let mut picked = Vec::new();
        let keep = |object: Value| picked.extend(pick(&object["metadata"]));
        self.list_metadata(resource, selection, keep).await?;
        Ok(picked)
    }

    /// Whether there is an object of that kind. The metadata of one is read.
    pub async fn has_any(&self, resource: &'static Resource) -> Result<bool, KubeError> {
        let mut found = false;
        let one = ListParams::default().limit(1);
        let request = self.request(resource).list_metadata(&one);
        self.page(resource, request, |_: Value| found = true)
            .await?;
        Ok(found)
    }

    /// The selected objects, for a caller that has work to do between two pages or may stop before the last one.
    pub fn pages(&self, resource: &'static Resource, selection: &Selection<'_>) -> Pages<'_> {
        self.pages_by(resource, selection, core::Request::list)
    }

    /// The same with the objects' metadata alone.
    pub fn metadata_pages(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
    ) -> Pages<'_> {
        self.pages_by(resource, selection, core::Request::list_metadata)
    }

    fn pages_by(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
        request: PageRequest,
    ) -> Pages<'_> {
        Pages {
            client: self,
            resource,
            collection: match selection.everywhere {
                true => core::Request::new(resource.path_everywhere()),
                false => self.request(resource),
            },
            params: selection.params(),
            request,
        }
    }

    async fn list_by<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        selection: &Selection<'_>,
        request: PageRequest,
        mut visit: impl FnMut(T),
    ) -> Result<(), KubeError> {
        let mut pages = self.pages_by(resource, selection, request);
        while pages.next(&mut visit).await? {}
        Ok(())
    }

    /// Shows the objects of one page; returns where the list goes on.
    async fn page<T: DeserializeOwned>(
        &self,
        resource: &'static Resource,
        request: Request,
        mut visit: impl FnMut(T),
    ) -> Result<Option<String>, KubeError> {
        let failed = |failure: Failure| failure.into_error(self.ask(Verb::List, resource, ""));
        let text = self.send_text(request).await.map_err(failed)?;
        let page: TextPage<'_> = parse(&text).map_err(failed)?;
        for item in page.items.unwrap_or_default() {
            visit(parse(item.get().as_bytes()).map_err(failed)?);
        }
        Ok(page.metadata.continues.filter(|token| !token.is_empty()))
    }
}

/// A list that is read page by page. Holds no object.
pub struct Pages<'a> {
    client: &'a ObjectClient,
    resource: &'static Resource,
    collection: core::Request,
    params: ListParams,
    request: PageRequest,
}

impl fmt::Debug for Pages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages")
            .field("resource", &self.resource)
            .finish_non_exhaustive()
    }
}

impl Pages<'_> {
    /// Shows the objects of the next page to `visit`; whether there is another page.
    pub async fn next<T: DeserializeOwned>(
        &mut self,
        visit: impl FnMut(T),
    ) -> Result<bool, KubeError> {
        let request = (self.request)(&self.collection, &self.params);
        let more = self.client.page(self.resource, request, visit).await?;
        self.params.continue_token = more;
        Ok(self.params.continue_token.is_some())
    }
}

/// A page of a list whose objects are not parsed yet.
#[derive(Deserialize)]
struct TextPage<'a> {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    continues: Option<String>,
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::time::Duration;

    use hyper::{Request as Http, Response};
    use kube::Client;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;
    use crate::{Connection, Place};

    const PODS: Resource = Resource {
        group: "",
        version: "v1",
        plural: "pods",
        kind: "Pod",
        place: Place::Namespaced,
    };

    thread_local! {
        /// Objects that were parsed and not dropped yet, now and at most.
        static LIVE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    }

    /// An object that counts itself.
    struct Counted;

    impl<'de> Deserialize<'de> for Counted {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            Value::deserialize(from)?;
            LIVE.with(|live| {
                let (now, most) = live.get();
                live.set((now + 1, most.max(now + 1)));
            });
            Ok(Counted)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            LIVE.with(|live| {
                let (now, most) = live.get();
                live.set((now - 1, most));
            });
        }
    }

    /// A server of 1,000 pods that answers as many as it is asked for; the queries that it was asked.
    fn server() -> (ObjectClient, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let queries = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Http<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let number = |name: &str| {
                let mut fields = query.split('&').filter_map(|field| field.split_once('='));
                fields.find_map(|(field, value)| (field == name).then(|| value.parse().unwrap()))
            };
            let from: usize = number("continue").unwrap_or(0);
            let to = (from + number("limit").unwrap_or(1000)).min(1000);
            queries.lock().push(query.clone());
            let items: Vec<Value> = (from..to)
                .map(|n| json!({ "metadata": { "name": format!("pod-{n}") } }))
                .collect();
            let next = (to < 1000).then(|| to.to_string());
            let page = json!({ "metadata": { "continue": next }, "items": items });
            let answer = Response::new(Body::from(page.to_string().into_bytes()));
            async move { Ok::<_, std::convert::Infallible>(answer) }
        });
        let connection = Connection {
            client: Client::new(service, "default"),
            namespace: "default".to_owned(),
            timeout: Duration::from_secs(20),
        };
        (ObjectClient::new(&connection), asked)
    }

    /// Who reads all pools, reservations or pods of a large cluster holds one page's text and one of its objects.
    #[tokio::test]
    async fn berth_15_21_a_list_holds_one_parsed_object_at_a_time() {
        let (client, asked) = server();
        let mut seen = 0;
        let visit = |_: Counted| seen += 1;
        client.reduce(&PODS, "", 100, visit).await.unwrap();
        assert_eq!(seen, 1000);
        assert_eq!(LIVE.with(Cell::get), (0, 1));
        let asked = asked.lock();
        assert_eq!(asked.len(), 10);
        assert!(
            asked.iter().all(|query| query.contains("limit=100")),
            "{asked:?}"
        );
    }
}
