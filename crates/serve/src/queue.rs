//! The waiting sequences: clients take turns, whatever each of them sends.

use std::cmp::Ordering;
use std::collections::VecDeque;

use crate::request::Client;

/// What waits, by client. The client whose turn was longest ago comes first; what one client sends
/// stays in order.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    clients: VecDeque<(Client, VecDeque<T>)>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { clients: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// Appends to what a client has waiting.
    pub(crate) fn push(&mut self, client: Client, item: T) {
        self.of(client).push_back(item);
    }

    /// Puts something before all that a client has waiting.
    pub(crate) fn push_first(&mut self, client: Client, item: T) {
        self.of(client).push_front(item);
    }

    fn of(&mut self, client: Client) -> &mut VecDeque<T> {
        let known = self.clients.iter().position(|(known, _)| *known == client);
        let at = known.unwrap_or_else(|| {
            self.clients.push_back((client, VecDeque::new()));
            self.clients.len() - 1
        });
        &mut self.clients[at].1
    }

    /// All that waits.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.clients.iter().flat_map(|(_, items)| items)
    }

    /// The clients that wait.
    pub(crate) fn clients(&self) -> impl Iterator<Item = Client> {
        self.clients.iter().map(|(client, _)| *client)
    }

    /// Drops all items but those to keep.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.clients.iter_mut().for_each(|(_, items)| items.retain(&mut keep));
        self.clients.retain(|(_, items)| !items.is_empty());
    }

    /// The client to serve next: of those with something that may begin, the first in this order, and
    /// of several the one whose turn was longest ago.
    pub(crate) fn next(
        &self,
        order: impl Fn(Client, Client) -> Ordering,
        may_begin: impl Fn(&T) -> bool,
    ) -> Option<Client> {
        let ready = self.clients.iter().filter(|(_, items)| items.iter().any(&may_begin));
        ready.map(|(client, _)| *client).min_by(|one, other| order(*one, *other))
    }

    /// Takes a client's first item that may begin. Its next turn comes after those of the others.
    pub(crate) fn take(&mut self, client: Client, may_begin: impl Fn(&T) -> bool) -> Option<T> {
        let at = self.clients.iter().position(|(known, _)| *known == client)?;
        let item = self.clients[at].1.iter().position(may_begin)?;
        let (client, mut items) = self.clients.remove(at)?;
        let item = items.remove(item);
        if !items.is_empty() {
            self.clients.push_back((client, items));
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(items: &[(u64, char)]) -> Queue<char> {
        let mut queue = Queue::default();
        items.iter().for_each(|(client, item)| queue.push(Client::Connection(*client), *item));
        queue
    }

    fn order(mut queue: Queue<char>, held: impl Fn(Client) -> usize) -> String {
        let mut order = String::new();
        let fewest = |one: Client, other: Client| held(one).cmp(&held(other));
        while let Some(client) = queue.next(fewest, |_| true) {
            order.extend(queue.take(client, |_| true));
        }
        order
    }

    #[test]
    fn clients_take_turns_and_each_stays_in_order() {
        let items = [(1, 'a'), (1, 'b'), (1, 'c'), (2, 'x'), (2, 'y'), (3, 'p')];
        assert_eq!(order(queue(&items), |_| 0), "axpbyc");
    }

    #[test]
    fn who_holds_fewest_slots_comes_first() {
        let items = [(1, 'a'), (1, 'b'), (2, 'x'), (2, 'y')];
        assert_eq!(
            order(queue(&items), |client| usize::from(client == Client::Connection(1))),
            "xyab"
        );
    }

    #[test]
    fn what_may_not_begin_is_passed_over_and_what_was_suspended_goes_first() {
        let mut queue = queue(&[(1, 'a'), (1, 'b'), (2, 'x')]);
        let not_a = |item: &char| *item != 'a';
        let client = Client::Connection(1);
        assert_eq!(queue.next(|_, _| Ordering::Equal, not_a), Some(client));
        assert_eq!(queue.take(client, not_a), Some('b'));
        queue.push_first(client, 'c');
        assert_eq!(order(queue, |_| 0), "xca");
    }

    #[test]
    fn a_client_with_nothing_left_is_forgotten() {
        let mut queue = queue(&[(1, 'a'), (2, 'x')]);
        queue.retain(|item| *item == 'x');
        assert_eq!(queue.clients().collect::<Vec<_>>(), [Client::Connection(2)]);
        assert_eq!(queue.take(Client::Connection(1), |_| true), None);
        queue.retain(|_| false);
        assert!(queue.is_empty());
    }
}
