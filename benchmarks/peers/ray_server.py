"""An ONNX model behind Ray Serve: `python ray_server.py MODEL.onnx PORT`. Batches of up to 32, in its own format."""

import sys
import time

import numpy as np
import ray
from ray import serve


@serve.deployment(max_ongoing_requests=512, ray_actor_options={"num_cpus": 0})
class OnnxModel:
    def __init__(self, path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        takes = self.session.get_inputs()[0]
        self.name, self.shape = takes.name, takes.shape[1:]

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.002)
    async def run(self, rows):
        return list(self.session.run(None, {self.name: np.stack(rows)})[0])

    async def __call__(self, request):
        content = await request.json()
        row = np.array(content["inputs"][0]["data"], np.float32).reshape(self.shape)
        return {"output": (await self.run(row)).tolist()}


if __name__ == "__main__":
    ray.init(
        num_cpus=1,
        object_store_memory=80_000_000,  # it holds nothing here
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    serve.run(OnnxModel.bind(sys.argv[1]), route_prefix="/")
    while True:
        time.sleep(1)
