"""KDA's short convolution: each channel sees its last few inputs; its state is those inputs.

state (rows, D, width - 1) holds the inputs before the first token, oldest first; row `index[0]` is this request's.
"""

import torch
import torch.nn.functional as F  # noqa: N812

__all__ = ["conv_prefill", "conv_update"]


def conv_update(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """x (1, D), weight (D, width) -> silu(sum_i weight[i] x[t - width + 1 + i]) in fp32, (1, D); shifts state."""
    return conv_prefill(x, weight, state, index)


def conv_prefill(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The same for x (T, D), T >= 1; the state becomes the last width - 1 inputs."""
    row = state[index[0]]
    seen = torch.cat([row.T.to(x.dtype), x])  # (width - 1 + T, D)
    y = F.conv1d(seen.T.float(), weight.float().unsqueeze(1), groups=x.shape[1]).T.contiguous()
    row.copy_(seen[x.shape[0] :].T)
    return F.silu(y).to(x.dtype)
