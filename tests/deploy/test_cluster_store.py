"""The suites of the store, unchanged, on a cluster of three masters."""

from tests.service.store.test_append import *  # noqa: F403
from tests.service.store.test_commit import *  # noqa: F403
from tests.service.store.test_lease import *  # noqa: F403
from tests.service.store.test_read import *  # noqa: F403
from tests.service.store.test_store import *  # noqa: F403

# They cut a unix socket, or tell one server to pause, to be full, to list its keys.
del test_a_cut_answer_then_the_same_number_leaves_one_entry  # noqa: F821
del test_a_cancelled_append_is_settled_by_its_number  # noqa: F821
del test_a_full_server_refuses_new_work_before_accepting_it  # noqa: F821
del test_a_key_of_the_wrong_type_leaves_nothing_behind  # noqa: F821
