"""What lets PD run on CPU workers, for the tests here, changes nothing for others."""

from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender


def test_the_sender_still_takes_its_page_indices_asynchronously():
    """NPU workers inherit it, where torch.cuda isn't available either."""
    assert MooncakeKVSender.supports_host_tensor_indices
